# The scripts, with data and runs in the volume /runs; docs/usage.md shows how to use it.
FROM python:3.12-slim
ARG REQUIREMENTS=requirements.txt
WORKDIR /code
COPY requirements*.txt ./
RUN pip install --no-cache-dir -r $REQUIREMENTS
COPY . .
RUN useradd --create-home cifar10 && mkdir /runs && chown cifar10 /runs
USER cifar10
VOLUME /runs
ENTRYPOINT ["python"]
