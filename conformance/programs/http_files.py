"""Asks an HTTP server for files over connections that stay open, from several threads: http_files.py URL SUMS COUNT."""

import concurrent.futures
import hashlib
import sys

import requests

url, sums, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
wanted = dict(reversed(line.split()) for line in open(sums))
wrong = []


def ask():
    with requests.Session() as session:
        for i in range(count):
            for name, digest in wanted.items():
                answer = session.get(f"{url}/{name}", timeout=30)
                if answer.status_code != 200 or hashlib.sha256(answer.content).hexdigest() != digest:
                    wrong.append((i, name, answer.status_code, len(answer.content)))


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for asked in [pool.submit(ask) for _ in range(4)]:
        asked.result()
assert not wrong, wrong[:3]
print(f"{4 * count * len(wanted)} files as they are")
