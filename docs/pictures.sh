#!/usr/bin/env bash
# Draws pictures of runs on the pages, from docs/runs and models.
# hero.png needs CIFAR-10, and the last picture the run of ResNet-23 in docs/results.md.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=docs/runs
python cifar10_plot.py --picture=curves --runs=$runs/tutorial --output=docs/curves.png
python cifar10_plot.py --picture=curves --runs=$runs/resnet23_100_2.0.0 --output=docs/resnet23.png
python cifar10_plot.py --picture=predictions --runs=models/airbench94 --output=docs/hero.png
python cifar10_plot.py --picture=confusion --runs=/tmp/resnet23 --output=docs/resnet23-confusion.png
