"""Settings of a small run of classification.py."""
from classification_lib import run


def of(**changes):
    """`run.Settings` of a run on 80 images in batches of 16, but for these changes."""
    return run.Settings(**{
        'net': 'small', 'dataset': 'pets', 'data_dir': '/data',
        'classes': ('cat', 'dog'), 'training_images': 80, 'images_checksum': '01234567',
        'validate_on': 'test', 'seed': 3, 'batch_size': 16,
        'workers': 1, 'max_steps': 10, 'learning_rate': 0.1, 'warmup_epoch': 5.0,
        'validate_every': 1, 'use_fp16': False, 'use_bf16': False, 'sync_bn': False,
        'initial_checkpoint': None,
        **changes})
