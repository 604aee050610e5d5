"""Draw the README's picture: the demo's histograms for two OOD sets, first seed.

python scripts/readme_picture.py docs/images/demo
"""

import sys

from offaxis.demo import run_demo
from offaxis.reports.figures import Panel, histograms, save_figure

demo = run_demo(seeds=1)
label = {"standard": "largest logit, standard network", "cosine": "largest cosine, cosine network"}
panels = [
    Panel(
        title="",
        id_scores=demo.largest[kind]["digits"],
        ood_scores=demo.largest[kind][name],
        id_name="digits",
        ood_name=name,
        label=label[kind],
    )
    for name in ("photographs", "Gaussian noise")
    for kind in ("standard", "cosine")
]
save_figure(histograms(panels, columns=2, bins=40), sys.argv[1])
sys.stdout.write(
    f"{ {kind: {name: round(100 * v[0], 1) for name, v in sets.items()} for kind, sets in demo.auroc.items()} }\n"
)
