// kafka_reader.js HOSTS TOPIC COUNT: reads a topic with kafkajs, and each message as a CloudEvent
// with the official SDK if it is one. Prints a line of JSON per message, with the partition where
// kafkajs itself would put its key.
const { Kafka, Partitioners, logLevel } = require('kafkajs');
const { Kafka: Binding } = require('cloudevents');

async function main(hosts, topic, count) {
  const kafka = new Kafka({ clientId: 'reader', brokers: hosts.split(','), logLevel: logLevel.NOTHING });
  const admin = kafka.admin();
  await admin.connect();
  const { topics: [{ partitions }] } = await admin.fetchTopicMetadata({ topics: [topic] });
  await admin.disconnect();
  const choose = Partitioners.DefaultPartitioner();
  const partitionMetadata = partitions.map(({ partitionId }) => ({ partitionId, leader: 0 }));
  const consumer = kafka.consumer({ groupId: `reader-${topic}-${Date.now()}`, maxWaitTimeInMs: 50 });
  let left = Number(count);
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await new Promise((resolve) => consumer.run({
    eachMessage: async ({ partition, message }) => {
      const headers = Object.fromEntries(Object.entries(message.headers).map(([k, v]) => [k, v.toString()]));
      const line = { partition, key: message.key && message.key.toString(), value: message.value.toString(), headers };
      if (message.key) line.chosen = choose({ topic, partitionMetadata, message: { key: message.key } });
      const whole = { ...message, headers, value: message.value.toString() };
      if (Binding.isEvent(whole)) line.event = Binding.toEvent(whole);
      console.log(JSON.stringify(line));
      left -= 1;
      if (left === 0) resolve();
    },
  }));
  await consumer.disconnect();
}

main(...process.argv.slice(2)).catch((error) => { console.error(error); process.exit(1); });
