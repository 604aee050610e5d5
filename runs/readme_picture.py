"""The README's picture: the demo's histograms for two sets of strangers, first seed.

python runs/readme_picture.py docs/images/demo
"""

import sys

from offaxis.demo import run_demo
from offaxis.reports.figures import Panel, histograms, save_figure

demo = run_demo(seeds=1)
label = {"standard": "largest logit, standard network", "cosine": "largest cosine, cosine network"}
panels = [
    Panel("", demo.largest[kind]["digits"], demo.largest[kind][name], "digits", name, label[kind])
    for name in ("photographs", "Gaussian noise")
    for kind in ("standard", "cosine")
]
save_figure(histograms(panels, columns=2, bins=40), sys.argv[1])
sys.stdout.write(
    f"{ {kind: {name: round(100 * v[0], 1) for name, v in sets.items()} for kind, sets in demo.auroc.items()} }\n"
)
