"""The command of the GPU report, which runs on the CPU, too."""
import json
import subprocess
import sys

import forks
import pytest
import record_files

from benchmarks.gpu import __main__ as gpu_main
from benchmarks.gpu import child
from benchmarks.gpu import report

TINY = ['--batches=2', '--batch_size=8', '--step_seconds=0', '--steps=11', '--images=2',
        '--short_steps=11', '--long_steps=11', '--seconds=0.1', '--nets=tutorial',
        '--precisions=float32']


def _main(monkeypatch, *words):
    monkeypatch.setattr(subprocess, 'Popen', forks.Python)  # Its processes import nothing twice.
    monkeypatch.setattr(sys, 'argv', ['benchmarks.gpu', *words])
    gpu_main.main()


@pytest.mark.slow
def test_every_part_runs_on_the_cpu(tmp_path, monkeypatch, capsys):
    record_files.write_noise(tmp_path, count=40)
    _main(monkeypatch, *TINY, f'--data_dir={tmp_path}', f'--output={tmp_path}/gpu')
    found = json.loads((tmp_path / 'gpu.json').read_text())
    parts = found['parts']
    assert not [title for title, result in parts.items() if 'error' in result]
    checks = [check for result in parts.values() for check in result.get('checks', ())]
    assert len(checks) >= 7 and all(check['passed'] for check in checks), checks
    page = (tmp_path / 'gpu.md').read_text()
    assert page in capsys.readouterr().out
    if not child.nvidia_smi(['name']):
        assert '**No GPU: everything ran on the CPU.**' in page
        row, = parts['Placement and transfers']['rows'][:1]
        assert row['CPU:0 to CPU:1: tensors'] == 12  # Ten variables, images, labels.
    for title in ('Machine', 'Input alone', 'Speed, tutorial, float32', 'Towers',
                  'Variables on the CPU and on the GPU', 'Training and evaluation',
                  'Prediction and export', 'Precision @ 1', 'Two workers'):
        assert parts[title]['rows'], title
        assert f'\n## {title}\n' in page
    towers = parts['Towers']['checks'][0]
    assert towers['value'] < 1e-4
    speed, = parts['Speed, tutorial, float32']['rows']
    assert speed['batch'] == 2
    assert speed['fixed batch, images/s'] == pytest.approx(
        2000 / speed['fixed batch, ms'], rel=0.01, abs=1)


def test_a_part_that_fails_is_reported_and_the_others_run(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as exit_:
        _main(monkeypatch, *TINY, f'--data_dir={tmp_path}', f'--output={tmp_path}/gpu',
              '--precisions=fp17,bf16', '--parts=agreement')
    assert exit_.value.code == 'benchmarks.gpu: failed: Agreement with the CPU, fp17'
    parts = json.loads((tmp_path / 'gpu.json').read_text())['parts']
    assert 'fp17' in parts['Agreement with the CPU, fp17']['error']
    assert 'error' not in parts['Agreement with the CPU, bf16']


def test_an_unknown_part_is_refused(monkeypatch, tmp_path):
    with pytest.raises(SystemExit) as exit_:
        _main(monkeypatch, f'--data_dir={tmp_path}', '--parts=speed,sped')
    assert '--parts has "sped"; expected some of machine,placement,' in exit_.value.code


def test_a_part_is_ended_after_its_limit_with_its_children():
    """The child keeps the pipe open: without its end, the command would wait for it."""
    program = ('import subprocess, sys; '
               'subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])'
               '.wait()')
    with pytest.raises(child.Failed, match='ended after 1 seconds'):
        child.run(['-S', '-c', program], limit=1)


def test_results_are_kept(tmp_path, monkeypatch, capsys):
    earlier = {'heading': '', 'notes': [], 'parts': {
        'PyTorch, tf32': {'rows': [{'ms': 1.5}], 'checks': [], 'notes': ['A note.'],
                          'seconds': 2.0},
        'PyTorch, float32': {'error': 'broken', 'seconds': 1.0}}}
    (tmp_path / 'gpu.json').write_text(json.dumps(earlier))
    _main(monkeypatch, f'--data_dir={tmp_path}', f'--output={tmp_path}/gpu', '--parts=torch',
          '--keep', '--minutes=0')
    parts = json.loads((tmp_path / 'gpu.json').read_text())['parts']
    assert parts['PyTorch, tf32'] == earlier['parts']['PyTorch, tf32']
    assert parts['PyTorch, float32']['skipped'] == '--minutes=0 were over'


def test_the_page():
    result = {'rows': [{'a': 1, 'b': 'x|y'}, {'a': 2, 'c': None}], 'notes': ['A note.'],
              'checks': [{'what': 'w', 'value': 3, 'limit': 2, 'passed': False}], 'seconds': 4}
    page = report.markdown({'heading': 'H', 'notes': [], 'parts': {
        'One': result, 'Two': {'error': 'line 1\nline 2', 'seconds': 5},
        'Three': {'skipped': 'no time'}}})
    assert '| One | **1 checks failed** | 4 |\n| Two | **failed** | 5 |\n' in page
    assert '| Three | not run: no time |  |' in page
    assert '| w | 3 | 2 | **NO** |' in page
    assert '| a | b | c |\n| --- | --- | --- |\n| 1 | x\\|y |  |\n| 2 |  |  |\n\n- A note.' in page
    assert '```\nline 1\nline 2\n```' in page
