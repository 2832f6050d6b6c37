"""Steps of the tutorial's network in PyTorch, for the GPU report; see `torch_net`.

    python -m benchmarks.gpu.pytorch --batches=128,512 --precision=tf32

A process without TensorFlow: the two may come with different CUDA libraries.
"""
import argparse
import importlib.util
import json

from benchmarks import timing


def main():
    parser = argparse.ArgumentParser(prog='python -m benchmarks.gpu.pytorch', description=__doc__)
    parser.add_argument('--batches', default='128,512,2048', help='batch sizes to time')
    parser.add_argument('--precision', default='tf32', choices=['float32', 'tf32'])
    parser.add_argument('--step_seconds', type=float, default=1.5, help='seconds to repeat a step')
    options = parser.parse_args()
    if importlib.util.find_spec('torch') is None:
        print(json.dumps({'skipped': 'PyTorch is not installed'}))
        return
    print(json.dumps({'rows': _rows(options), 'checks': [], 'notes': []}))


def _rows(options):
    import torch

    from benchmarks import torch_net
    torch.backends.cuda.matmul.allow_tf32 = options.precision == 'tf32'
    torch.backends.cudnn.allow_tf32 = options.precision == 'tf32'
    torch.backends.cudnn.benchmark = True
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    rows = []
    for batch in map(int, options.batches.split(',')):
        for compiled in (False, True):
            row = {'PyTorch': torch.__version__, 'device': device, 'precision': options.precision,
                   'batch': batch, 'mode': 'compiled' if compiled else 'eager'}
            try:
                trainer = torch_net.Trainer(batch, compiled, device)
                seconds = timing.median_seconds(trainer.step, options.step_seconds)
                row.update({'ms': round(1000 * seconds, 3), 'images/s': round(batch / seconds)})
            except Exception as error:  # noqa: BLE001, the compiler may lack a part of its own.
                row['error'] = str(error).splitlines()[0][:200]
            rows.append(row)
    return rows


if __name__ == '__main__':
    main()
