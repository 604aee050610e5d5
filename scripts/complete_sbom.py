"""Put the version, which is dynamic, into a CycloneDX document: ``python scripts/complete_sbom.py FILE``."""

import json
import re
import sys
from pathlib import Path

path = Path(sys.argv[1])
source = (Path(__file__).parents[1] / "src" / "offaxis" / "__init__.py").read_text(encoding="utf-8")
(version,) = re.findall(r'^__version__ = "(.*)"$', source, re.MULTILINE)
document = json.loads(path.read_text(encoding="utf-8"))
document["metadata"]["component"]["version"] = version
path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
sys.stdout.write(f"{path}: offaxis {version} and {len(document['components'])} components\n")
