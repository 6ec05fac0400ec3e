// Reads the entries of a Redis stream with ioredis, and prints each as a line of JSON; what is a CloudEvent, as the SDK of
// CloudEvents understands it: `node redis_reader.js SOCKET STREAM`.
const Redis = require("ioredis");
const { HTTP } = require("cloudevents");

async function main(socket, stream) {
  const redis = new Redis(socket);
  for (const [id, list] of await redis.xrange(stream, "-", "+")) {
    const fields = {};
    for (let i = 0; i < list.length; i += 2) fields[list[i]] = list[i + 1];
    const line = { id, fields };
    // A stream has no binding of CloudEvents' own: the fields are named as Kafka's binding names headers, and HTTP's have a dash.
    const { value, ...rest } = fields;
    const headers = Object.fromEntries(Object.entries(rest).map(([name, text]) => [name.replace(/^ce_/, "ce-"), text]));
    const is_event = headers["ce-id"] || (headers["content-type"] || "").startsWith("application/cloudevents");
    if (is_event) line.event = HTTP.toEvent({ headers, body: value });
    console.log(JSON.stringify(line));
  }
  redis.disconnect();
}

const [socket, stream] = process.argv.slice(2);
main(socket, stream).catch((err) => { console.error(err); process.exit(1); });
