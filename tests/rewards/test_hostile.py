"""Completions that attack: each would score 1 if it got out, none does, and the pool goes on."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparrow_core.train_contracts import Completion
from sparrow_trainers.rewards import RewardOutcome, RewardPool
from tests.rewards.helpers import completion, needs_sandbox, rewards_config

pytestmark = needs_sandbox

SECRET = "plover-4417"
HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "loop": "while True: pass",
    "allocation": "x = bytearray(10 * 2**30)\nfor n in range(0, len(x), 4096): x[n] = 1\nprint(SECRET)",
    "many allocations": "import os\nfor _ in range(6):\n    if os.fork() == 0: break\nx = bytearray(200 * 2**20)\n"
    "for n in range(0, len(x), 4096): x[n] = 1\nwhile True: pass",
    "large file": "file = open('/tmp/x', 'wb')\nfor _ in range(100): file.write(bytes(2**20))\nprint(SECRET)",
    "many files": "for n in range(100): open(f'/tmp/{n}', 'wb').write(bytes(2**20))\nprint(SECRET)",
    "one print": "print('x' * 10**9)",
    "prints": "for _ in range(10**4): print('x' * 10**5)",
    "system write": "open('/usr/sparrow-test', 'w').write('x')\nprint(SECRET)",
    "outside write": "open(OUTSIDE + '/written', 'w').write('x')\nprint(SECRET)",
    "outside read": "print(open(OUTSIDE + '/secret').read())",
    "home": "import os, sys\nprint(SECRET if set(os.listdir(HOME)) - set(sys.base_prefix.split('/')) else '')",
    "environment": "import os\nprint(os.environ['SPARROW_TEST_SECRET'])",
    "parent's environment": "print(open('/proc/1/environ').read(), SECRET)",
    "network": "import socket\nprint(socket.create_connection(('127.0.0.1', PORT), timeout=1).recv(99).decode())",
    "kill all": "import os\nos.kill(-1, 9)\nprint(SECRET)",
}
LOGGED = {
    "fork bomb": "time",
    "loop": "time",
    "allocation": "memory",
    "many allocations": "memory",
    "large file": "disk",
    "many files": "disk",
    "one print": "memory",
    "prints": "output",
}
"""The limit that the log says it ended at."""


class Listener:
    """Tells its secret to whoever connects."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.connections += 1
            connection.sendall(SECRET.encode())
            connection.close()


class Scene:
    """The pool, and the outcomes of all hostile completions scored between two good ones."""

    def __init__(self, pool: RewardPool, outside: Path, port: int) -> None:
        self.pool = pool
        words = {"OUTSIDE": repr(str(outside)), "HOME": repr(os.path.expanduser("~")), "PORT": str(port)}
        attacks = [self._attack(name, code, words) for name, code in HOSTILE.items()]
        scored = pool.score([good("first"), *attacks, good("last")])
        self.first, self.last = scored[0], scored[-1]
        self.outcomes: dict[str, RewardOutcome] = dict(zip(HOSTILE, scored[1:-1], strict=True))

    @staticmethod
    def _attack(name: str, code: str, words: dict[str, str]) -> Completion:
        for word, value in words.items():
            code = code.replace(word, value)
        return answer(name, code.replace("SECRET)", f"{SECRET!r})").replace("SECRET if", f"{SECRET!r} if"))


def answer(prompt_id: str, code: str, output: str = SECRET) -> Completion:
    tests: list[dict[str, Any]] = [{"input": "", "output": output}]
    return completion(f"```python\n{code}\n```", prompt_id=prompt_id, tests=tests)


def good(prompt_id: str) -> Completion:
    return answer(prompt_id, "print(2 + 3)", "5")


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.server.close()


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """A directory that everyone may read and write, outside of /tmp."""
    path = Path(f"/var/tmp/sparrow-hostile-{os.getpid()}")
    path.mkdir()
    path.chmod(0o777)
    (path / "secret").write_text(SECRET)
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


@pytest.fixture(scope="module")
def lines() -> Iterator[Lines]:
    lines = Lines()
    logging.getLogger("sparrow_trainers.rewards").addHandler(lines)
    yield lines
    logging.getLogger("sparrow_trainers.rewards").removeHandler(lines)


@pytest.fixture(scope="module")
def scene(sandbox_works: None, listener: Listener, outside: Path, lines: Lines) -> Iterator[Scene]:
    term = {"reward": {"type": "code", "test_limit_s": 3, "total_limit_s": 5}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARROW_TEST_SECRET", SECRET)
        with RewardPool(rewards_config(term, workers=2, time_limit_s=30)) as pool:
            yield Scene(pool, outside, listener.port)


@pytest.mark.parametrize("name", HOSTILE)
def test_an_attack_scores_nothing_and_is_no_error(scene: Scene, lines: Lines, name: str) -> None:
    outcome = scene.outcomes[name]
    assert (outcome.value, outcome.error) == (0.0, None), outcome.message
    logged = [line for line in lines.lines if line.startswith(f"reward code on prompt {name}: ")]
    if name in LOGGED:
        assert logged == [f"reward code on prompt {name}: the answer came to an end at its {LOGGED[name]} limit"]


def test_nothing_got_out(scene: Scene, outside: Path, listener: Listener) -> None:
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert not Path("/usr/sparrow-test").exists()
    assert listener.connections == 0


def test_nothing_is_left_running_and_the_pool_goes_on(scene: Scene) -> None:
    assert (scene.first.value, scene.last.value) == (1.0, 1.0)
    for worker in scene.pool._workers:
        assert Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text() == ""
    assert [outcome.value for outcome in scene.pool.score([good("again")] * 3)] == [1.0] * 3
    assert not scene.pool.failures


def test_the_attacks_would_work_without_a_sandbox(outside: Path, listener: Listener) -> None:
    """What the attacks read is there to be read: the scores above are the sandbox's doing."""
    assert (outside / "secret").read_text() == SECRET
    before = listener.connections
    with socket.create_connection(("127.0.0.1", listener.port), timeout=5) as connection:
        assert connection.recv(99).decode() == SECRET
    assert listener.connections == before + 1


def test_a_test_of_another_form_is_counted_and_logged(scene: Scene, lines: Lines) -> None:
    (outcome,) = scene.pool.score([completion("```\nx\n```", prompt_id="rows:9", tests="assert x")])
    assert outcome.error == "raised"
    assert scene.pool.failures == {("code", "raised"): 1}
    assert any(line.startswith("reward on prompt rows:9 failed: code: raised: InputError") for line in lines.lines)
    scene.pool.failures.clear()
