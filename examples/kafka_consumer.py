"""Rows from one topic of Kafka, predictions into another, in the order in which they come.

    python examples/kafka_consumer.py model.tvmf rows predictions

A message is a list of JSON, the numbers of a row; null is a missing value. What has been polled is
predicted by one call, and committed when its predictions are sent: none is lost, and after a crash
some are sent twice. `pip install confluent-kafka`.
"""

import json
import sys

import numpy as np

import tvm_forest


def run(predictor, consumer, producer, topic, size=1000):
    """Predict until the consumer gives None."""
    while (messages := consumer.consume(size, timeout=1.0)) is not None:
        messages = [message for message in messages if message.error() is None]
        if messages:
            rows = np.array([json.loads(message.value()) for message in messages], float)
            for message, value in zip(messages, predictor.predict(rows).tolist(), strict=True):
                producer.produce(topic, json.dumps(value), key=message.key())
            producer.flush()
            consumer.commit(asynchronous=False)


if __name__ == "__main__":
    from confluent_kafka import Consumer, Producer

    path, source, target = sys.argv[1:]
    places = {"bootstrap.servers": "localhost:9092"}
    rows = Consumer({**places, "group.id": "forest", "enable.auto.commit": False})
    rows.subscribe([source])
    run(tvm_forest.load_predictor(path), rows, Producer(places), target)
