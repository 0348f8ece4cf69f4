"""What the package is built from: known vulnerabilities, a bill of materials, and the wheel's requirements.

    python -m tests.campaign.supply [--constraints constraints.txt] [--sbom build/sbom.json]

Runs pip-audit on the pinned versions, cyclonedx-py on this environment, and builds a wheel. Exit status 1 if a known
vulnerability or another requirement was found, 2 if the vulnerability services could not be asked about all versions.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

from tests.campaign.part_supply import REQUIREMENTS, core_requirements

ROOT = Path(__file__).parents[2]
SERVICES = ("pypi", "osv")


def audit(constraints: Path, service: str) -> tuple[list[str], int, int, str]:
    """Ask a service about pinned versions.

    pip-audit calls a version that the service does not know "skipped", and then speaks of no known vulnerabilities: so
    both are counted here.

    Returns
    -------
    vulnerable : list of str
        Versions with known vulnerabilities, and which.
    n_asked, n_skipped : int
        Versions that the service knew, and those that it did not.
    trouble : str
        The last line of an error, where there was one.
    """
    command = [sys.executable, "-m", "pip_audit", "-r", str(constraints), "--no-deps", "--disable-pip", "-f", "json"]
    command += ["--progress-spinner", "off", "-s", service]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return [], 0, 0, (done.stderr.strip().splitlines() or ["no answer"])[-1][:300]
    asked = [entry for entry in found if "skip_reason" not in entry]
    vulnerable = [
        f"{entry['name']} {entry['version']}: {', '.join(known['id'] for known in entry['vulns'])}"
        for entry in asked
        if entry["vulns"]
    ]
    skipped = [entry for entry in found if "skip_reason" in entry]
    return vulnerable, len(asked), len(skipped), skipped[0]["skip_reason"] if skipped else ""


def bill_of_materials(path: Path) -> set[str]:
    """Write the components of this environment, and return their names."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml")]
    command += ["--mc-type", "library", "--output-reproducible", "--of", "JSON", "-o", str(path), sys.executable]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return {component["name"].lower() for component in json.loads(path.read_text())["components"]}


def wheel_requirements() -> set[str]:
    """Build a wheel, and return what it requires without any extra."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(ROOT)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            metadata = Parser().parsestr(archive.read(name).decode())
    return core_requirements(metadata.get_all("Requires-Dist") or [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--sbom", type=Path, default=ROOT / "build" / "sbom.json")
    options = parser.parse_args()
    failed, whole = False, False
    for service in SERVICES:
        vulnerable, n_asked, n_skipped, trouble = audit(options.constraints, service)
        print(f"{service}: {n_asked} versions known, {n_skipped} unknown, {len(vulnerable)} vulnerable")
        print("".join(f"  {line}\n" for line in [*vulnerable, *([trouble] if trouble else [])]), end="")
        failed |= bool(vulnerable)
        whole |= n_asked > 0 and not n_skipped
    options.sbom.parent.mkdir(parents=True, exist_ok=True)
    components = bill_of_materials(options.sbom)
    print(f"{options.sbom}: {len(components)} components")
    failed |= not components >= REQUIREMENTS
    required = wheel_requirements()
    print(f"wheel requires {', '.join(sorted(required))}")
    failed |= required != REQUIREMENTS
    if not whole:
        print("no service knew all versions: nothing can be said about their vulnerabilities")
    return 1 if failed else 0 if whole else 2


if __name__ == "__main__":
    sys.exit(main())
