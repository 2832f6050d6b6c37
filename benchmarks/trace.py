"""What a step consists of: kernels, copies, idle time, memory, and where its operations run.

TensorFlow divides the graph of a step into one part per device, and adds a pair of operations, send
and receive, for each tensor that crosses. `RunOptions.output_partition_graphs` returns the parts. A
full trace has the times of kernels and copies, for which TensorFlow needs CUPTI.
"""
import collections

import tensorflow.compat.v1 as tf


def of_a_step(session, step):
    """Runs a step and traces it; returns the figures of `summary`."""
    metadata = tf.RunMetadata()
    session.run(step, run_metadata=metadata, options=tf.RunOptions(
        trace_level=tf.RunOptions.FULL_TRACE, output_partition_graphs=True))
    return summary(metadata)


def summary(metadata):
    """Figures of a `tf.RunMetadata`: those of the GPU only if it was traced."""
    nodes = [node for part in metadata.partition_graphs for node in part.node]
    found = {'operations': collections.Counter(
                 node.device.rpartition('device:')[2] for node in nodes),
             'tensors between devices': sum(
                 node.op in ('_Send', '_HostSend') and node.attr['send_device'].s
                 != node.attr['recv_device'].s for node in nodes),
             'transposes': sum(node.op == 'Transpose' for node in nodes)}
    streams = [each for device in metadata.step_stats.dev_stats
               if device.device.endswith('/stream:all') for each in device.node_stats]
    if not streams:
        return found
    copies = [each for each in streams if 'memcpy' in each.timeline_label.lower()
              + each.node_name.lower()]
    every = [each for device in metadata.step_stats.dev_stats for each in device.node_stats]
    begin = min(each.all_start_micros for each in every)
    end = max(each.all_start_micros + each.all_end_rel_micros for each in every)
    in_use = [memory.allocator_bytes_in_use for each in every for memory in each.memory
              if 'GPU' in memory.allocator_name]
    return {**found, 'kernels': len(streams) - len(copies), 'copies': len(copies),
            'busy, %': round(100 * _covered(streams) / max(1, end - begin), 1),
            'peak MB': round(max(in_use, default=0) / 1e6)}


def _covered(events):
    """Microseconds in which at least one event runs."""
    total = until = 0
    for start, end in sorted((each.all_start_micros,
                              each.all_start_micros + each.all_end_rel_micros) for each in events):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total
