import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_readme_example_prints_what_the_readme_says():
    (script,), (printed,) = blocks("python"), blocks("text")
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seconds = re.compile(r", [\d.e+-]+ s\)")
    assert seconds.sub("", done.stdout) == seconds.sub("", printed)
