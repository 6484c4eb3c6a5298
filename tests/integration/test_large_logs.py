"""A log of any size is read in bounded memory: in a process of its own, which may have no more."""

import json
import subprocess
import sys
import textwrap

import pytest

resource = pytest.importorskip("resource", reason="limits of memory are those of POSIX")

READ = textwrap.dedent(
    """
    import resource, sys
    from agent_cache.advise import logs
    from agent_cache.advise.logs import open_logs

    part, room, limit = map(int, sys.argv[2:])
    logs._MAX_IN_MEMORY = part
    if not room:
        logs.shutil.disk_usage = lambda _: type("Usage", (), {"free": 0})
    soft = 1024 * limit + int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
    with open_logs(sys.argv[1]) as log:
        for _ in range(2):
            latest, count = 0.0, 0
            for call in log:
                assert call.ended >= latest, (call.ended, latest)
                latest, count = call.ended, count + 1
        print(count)
    """
)


def write(path, form, size):
    """A log of about this many bytes. Returns how many calls it has."""
    count = written = 0
    result = {"id": "W1", "items": [{"item": str(number), "price": number / 7} for number in range(8)]}
    with path.open("w", encoding="utf-8") as file:
        if form == "document":
            file.write("[")
        while written < size:
            count += 1
            jitter = (count * 7919 % 1000) * 10 if form == "unsorted" else 0
            when = 1_780_000_000 + count + jitter
            call = {"tool": "get", "arguments": {"id": f"W{count % 997}"}, "result": result, "time": when}
            text = json.dumps(call)
            if form == "document":
                text = ("," if count > 1 else "") + text
            written += file.write(text + "\n")
        if form == "document":
            file.write("]")
    return count


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is measured from /proc")
@pytest.mark.parametrize(
    ("size", "limit"),
    [
        (5_000_000, 4_500),
        pytest.param(16_000_000, 15_000, marks=pytest.mark.slow),
        pytest.param(120_000_000, 40_000, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("form", "room"),
    [
        pytest.param("lines", True, marks=pytest.mark.slow),
        pytest.param("lines", False, marks=pytest.mark.slow),
        ("unsorted", True),
        pytest.param("document", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(900)
def test_memory_does_not_depend_on_the_size(tmp_path, form, room, size, limit):
    """The limit in kilobytes is less than the log, with room for what Python needs to read a part of it."""
    path = tmp_path / "log"
    count = write(path, form, size)
    part = min(1_000_000, size // 8)
    ran = subprocess.run(
        [sys.executable, "-c", READ, path, str(part), str(int(room)), str(limit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.stderr == ""
    assert ran.stdout == f"{count}\n"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is measured from /proc")
@pytest.mark.parametrize(
    ("size", "limit"), [(5_000_000, 4_500), pytest.param(60_000_000, 40_000, marks=pytest.mark.slow)]
)
def test_the_limit_of_these_tests_is_one(tmp_path, size, limit):
    count = write(tmp_path / "log", "lines", size)
    whole = ["-c", READ, tmp_path / "log", str(10**12), "1", str(limit)]
    ran = subprocess.run([sys.executable, *whole], capture_output=True, text=True, check=False)
    assert "MemoryError" in ran.stderr
    assert count
