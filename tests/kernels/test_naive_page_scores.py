"""Page scores against their formulas, head by head and page by page."""

import math

import torch

from sparrow_kernels.page_scores.naive import attention_mass, gqa_max_softmax, mean_landmark, quest

S, D, K, G = 4, 8, 2, 3
LENGTHS = torch.tensor([15, 8, 0], dtype=torch.int32)
TABLE = torch.tensor([[6, 1, 4, 3], [2, 5, -1, -1], [-1, -1, -1, -1]], dtype=torch.int32)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    k_PKSD = torch.randn(8, K, S, D)
    k_PKSD[3, :, 3] = torch.nan
    k_PKSD[[0, 7]] = torch.nan
    return torch.randn(3, K * G, D), k_PKSD


def full_pages(row: int) -> list[int]:
    return TABLE[row, : int(LENGTHS[row]) // S].tolist()


def check(scores_BKW: torch.Tensor, row: int, head: int, expected: list[torch.Tensor]) -> None:
    torch.testing.assert_close(scores_BKW[row, head, : len(expected)], torch.stack(expected))
    assert bool((scores_BKW[row, head, len(expected) :] == -torch.inf).all())


def test_mean_landmark() -> None:
    q_BND, k_PKSD = inputs()
    scores_BKW = mean_landmark(q_BND, k_PKSD.mean(2, keepdim=True), TABLE, LENGTHS, S)
    for row in range(2):
        for head in range(K):
            q_D = q_BND[row, head * G : (head + 1) * G].mean(0)
            check(scores_BKW, row, head, [q_D @ k_PKSD[page, head].mean(0) for page in full_pages(row)])
    assert bool((scores_BKW[2] == -torch.inf).all())


def test_gqa_max_softmax() -> None:
    q_BND, k_PKSD = inputs()
    scores_BKW = gqa_max_softmax(q_BND, k_PKSD.mean(2, keepdim=True), TABLE, LENGTHS, S)
    for row in range(2):
        for head in range(K):
            means_XD = torch.stack([k_PKSD[page, head].mean(0) for page in full_pages(row)])
            weights_GX = (q_BND[row, head * G : (head + 1) * G] @ means_XD.T / math.sqrt(D)).softmax(1)
            check(scores_BKW, row, head, list(weights_GX.max(0).values))


def test_quest_is_its_formula_and_bounds_every_token() -> None:
    q_BND, k_PKSD = inputs()
    bounds_PKMD = torch.stack([k_PKSD.amin(2), k_PKSD.amax(2)], dim=2)
    scores_BKW = quest(q_BND, bounds_PKMD, TABLE, LENGTHS, S)
    for row in range(2):
        for head in range(K):
            q_GD = q_BND[row, head * G : (head + 1) * G]
            expected = []
            for page in full_pages(row):
                low_D, high_D = bounds_PKMD[page, head]
                expected.append(torch.maximum(q_GD * low_D, q_GD * high_D).sum(1).max())
                assert bool(expected[-1] >= (q_GD @ k_PKSD[page, head].T).max())
            check(scores_BKW, row, head, expected)


def test_attention_mass_is_exact_and_sums_to_one() -> None:
    q_BND, k_PKSD = inputs()
    mass_BKW = attention_mass(q_BND, k_PKSD, TABLE, LENGTHS, 0.5)
    tokens_XD = torch.cat([k_PKSD[page, 1] for page in TABLE[0].tolist()])[:15]
    weights_GX = (q_BND[0, G:] @ tokens_XD.T * 0.5).softmax(1).mean(0)
    expected = [weights_GX[at : at + S].sum() for at in range(0, 15, S)]
    torch.testing.assert_close(mass_BKW[0, 1], torch.stack(expected))
    torch.testing.assert_close(mass_BKW.sum(-1)[:2], torch.ones(2, K))
    assert not mass_BKW[2].any()
