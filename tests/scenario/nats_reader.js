// Reads messages of a JetStream stream with the client that NATS itself publishes for node, and prints each as a line of JSON; what
// is a CloudEvent, as the SDK of CloudEvents understands it: `node nats_reader.js PORT STREAM COUNT`.
const nats = require("nats");
const { HTTP } = require("cloudevents");

async function main(port, stream, count) {
  const nc = await nats.connect({ servers: `127.0.0.1:${port}` });
  const js = nc.jetstream();
  const opts = nats.consumerOpts();
  opts.orderedConsumer();
  opts.bindStream(stream);
  const sub = await js.subscribe(">", opts);
  for await (const m of sub) {
    const headers = {};
    for (const name of m.headers.keys()) headers[name] = m.headers.get(name);
    const line = { subject: m.subject, seq: m.seq, headers, value: m.string() };
    const lower = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
    const is_event = lower["ce-id"] || (lower["content-type"] || "").startsWith("application/cloudevents");
    if (is_event) line.event = HTTP.toEvent({ headers: lower, body: m.string() });
    console.log(JSON.stringify(line));
    if (--count === 0) break;
  }
  await nc.close();
}

const [port, stream, count] = process.argv.slice(2);
main(port, stream, Number(count)).catch((err) => { console.error(err); process.exit(1); });
