#!/usr/bin/env bash
# The whole pipeline on handwritten digits, from image files to a learning curve. It prints
# each command, then runs it. Called by `make demo`; all its output is in demo-run/, where
# other folders are kept.
set -euo pipefail

CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DIR=demo-run
started=$SECONDS

run() {
  echo "\$ $*"
  "$@"
}

if [ ! -f .venv/bin/activate ]; then
  echo "the demo needs the environment of the project; run make demo, which makes it." >&2
  exit 1
fi
echo '$ source .venv/bin/activate'
# shellcheck disable=SC1091
source .venv/bin/activate
if [ -e "$DIR/model/checkpoints" ] && [ ! -e "$DIR/eval.json" ]; then
  echo "Resuming the run in $DIR/model, which was stopped. For a new one, remove $DIR/model."
else
  for made in images records model eval.json; do
    if [ -e "$DIR/$made" ]; then
      echo "Removing $DIR/$made of the earlier demo."
      rm -rf "${DIR:?}/$made"
    fi
  done
  mkdir -p "$DIR"
  # The commands that follow are here.
  run python data_prep/digits.py --digits_dir $DIR/images | sed '/^next:/d'
  run python data_prep/imagenet_to_tfrecords.py --raw_data_dir $DIR/images \
    --local_scratch_dir $DIR/records | sed '/^next:/d'
fi
run mpirun -np 2 python resnet/resnet_main.py --recipe=digits --data_dir=$DIR/records \
  --model_dir=$DIR/model --eval_every=1epoch --keep_checkpoints=1
run python eval/resnet_eval.py --eval_batch_size 200 --data_dir=$DIR/records \
  --model_dir=$DIR/model --json_file=$DIR/eval.json --store_predictions
run python eval/learning_curve.py --model_dir=$DIR/model
run python eval/report.py --model_dir=$DIR/model

echo
python - "$DIR" <<'PY'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
result = json.loads((folder / "eval.json").read_text())
print(f"top-1 {100 * result['top1']:.2f} %   top-5 {100 * result['top5']:.2f} %   ({folder}/eval.json)")
print(f"""
look at    {folder}/model/report.html, the page of the run, in a browser
           {folder}/model/learning_curve.png
           tensorboard --logdir {folder}/model/tensorboard
next       source .venv/bin/activate
           python eval/predict.py --model_dir={folder}/model {folder}/images/validation/7
           your own images: README.md""")
PY
echo "The demo took $((SECONDS - started)) s, and keeps $(du -sh "$DIR" | cut -f1)B in $DIR/."
