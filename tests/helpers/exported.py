"""A program without this project: classifies a photo with an exported model.

    python exported.py saved_model /tmp/cifar10_model/1 cat.jpg
    python exported.py litert model.tflite cat.jpg
    python exported.py onnx model.onnx cat.jpg

Prints the probabilities of the classes as JSON.
"""
import json
import sys

import numpy as np
from PIL import Image, ImageOps


def pixels(path):
    """Reads a photo: uint8 [1, 32, 32, 3]."""
    photo = ImageOps.exif_transpose(Image.open(path)).convert('RGB')
    photo = ImageOps.fit(photo, (32, 32), Image.Resampling.BILINEAR)
    return np.asarray(photo)[np.newaxis]


def saved_model(path, images):
    import tensorflow as tf
    network = tf.saved_model.load(path).signatures['serving_default']
    return network(images=tf.constant(images))['probabilities'].numpy()


def litert(path, images):
    from ai_edge_litert.interpreter import Interpreter
    network = Interpreter(model_path=path).get_signature_runner('serving_default')
    return network(images=images)['probabilities']


def onnx(path, images):
    import onnxruntime
    network = onnxruntime.InferenceSession(path)
    return network.run(['probabilities'], {'images': images})[0]


if __name__ == '__main__':
    kind, model, photo = sys.argv[1:]
    probabilities = {'saved_model': saved_model, 'litert': litert, 'onnx': onnx}[kind](
        model, pixels(photo))
    print(json.dumps(probabilities[0].tolist()))
