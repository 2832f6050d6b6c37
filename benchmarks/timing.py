"""Times steps; nothing here imports TensorFlow."""
import resource
import statistics
import time

_WARM_UP, _LEAST = 5, 3  # Steps.


class Clock:
    """Notes when each step of a training run ends.

    Attributes:
        ended: the time of each end, in seconds.
        processor: the processor time that this process had used by then, in seconds.
    """

    def __init__(self):
        self.ended, self.processor = [], []

    def step_ended(self):
        self.ended.append(time.time())
        self.processor.append(time.process_time())

    def result(self, images_per_step):
        """The run as `children.rate` and `children.processor_ms` read it, plus peak memory."""
        return {'ended': self.ended, 'processor': self.processor,
                'images_per_step': images_per_step,
                'peak_megabytes': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def median_seconds(step, duration):
    """Median seconds of a function that runs a step, repeated for `duration` seconds."""
    for _ in range(_WARM_UP):
        step()
    seconds, end = [], time.perf_counter() + duration
    while len(seconds) < _LEAST or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
