"""The signposts task and its reward: the same puzzles for the same seed, and answers that need distant words."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pydantic import ValidationError

from sparrow_core.errors import InputError
from sparrow_core.train_contracts import Completion, PromptExample
from sparrow_trainers.tasks.leading_words import LeadingWords, LeadingWordsConfig
from sparrow_trainers.tasks.signposts import SignpostsConfig, SignpostsSource

CONFIG = SignpostsConfig(size=50, seed=3)


def examples(config: SignpostsConfig = CONFIG) -> list[PromptExample]:
    source = SignpostsSource(config)
    return [source[index] for index in range(len(source))]


def score(example: PromptExample, text: str, finish_reason: str = "stop") -> float:
    return LeadingWords(LeadingWordsConfig()).score(
        Completion(example.prompt_id, example.text or "", text, len(text.split()), finish_reason, example.fields)  # type: ignore[arg-type]
    )


def test_a_seed_gives_the_same_puzzles_and_another_gives_others() -> None:
    assert examples() == examples()
    others = {each.text for each in examples(CONFIG.model_copy(update={"seed": 4}))}
    assert not others & {each.text for each in examples()}


def test_a_puzzle_depends_on_its_own_number_alone() -> None:
    assert SignpostsSource(CONFIG.model_copy(update={"size": 10}))[7] == SignpostsSource(CONFIG)[7]


def test_the_answer_is_what_the_signs_in_the_text_say() -> None:
    for example in examples():
        assert example.text is not None
        words = example.text.split()
        signs = {word[2:]: follower for word, follower in pairwise(words[:-1]) if word[:2] == "at"}
        at, walked = words[-1][2:], []
        while (sign := signs[at]) != "rest":
            at = sign[2:]
            walked += [sign, f"at{at}"]
        assert [*walked, "rest"] == example.fields["answer"].split()
        assert CONFIG.min_hops <= len(walked) // 2 <= CONFIG.max_hops


def test_most_signs_stand_further_back_than_three_pages_of_eight() -> None:
    distances = []
    for example in examples():
        assert example.text is not None
        words, answer = example.text.split(), example.fields["answer"].split()
        place = words[-1]
        for number, word in enumerate(answer[::2]):
            distances.append(len(words) + 2 * number - words.index(place))
            place = answer[2 * number + 1] if word != "rest" else place
    assert sum(distance > 24 for distance in distances) > 0.7 * len(distances)


def test_the_reward_is_the_share_before_the_first_mistake() -> None:
    example = examples()[0]
    words = example.fields["answer"].split()
    parts = len(words) + 1
    assert score(example, " ".join(words)) == 1
    assert score(example, " ".join(words), "length") == pytest.approx((parts - 1) / parts)
    assert score(example, " ".join([*words, "wind"])) == pytest.approx((parts - 1) / parts)
    assert score(example, " ".join([*words[:3], "wind", *words[4:]])) == pytest.approx(3 / parts)
    assert score(example, "") == 0


def test_a_prompt_without_the_field_is_refused() -> None:
    with pytest.raises(InputError, match=r"reward\.field"):
        score(PromptExample("p", text="x"), "x")


@pytest.mark.parametrize(
    ("changes", "says"), [({"max_signs": 41}, "places"), ({"min_hops": 12}, "min_hops"), ({"max_hops": 3}, "min_hops")]
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        SignpostsConfig(**changes)
