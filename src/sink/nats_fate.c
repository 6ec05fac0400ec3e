#include "sink/nats_fate.h"

const struct nats_fate nats_fates[] = {
    {10002, SINK_DOWN, "the account has used up its storage"},
    {10008, SINK_DOWN, "JetStream is temporarily unavailable"},
    {10009, SINK_DOWN, "the cluster has no leader at the moment"},
    {10023, SINK_DOWN, "the server has used up its storage"},
    {10028, SINK_DOWN, "the server has no memory left for streams"},
    {10039, SINK_DOWN, "JetStream is not enabled for the account"},
    {10047, SINK_DOWN, "the server has no storage left for streams"},
    {10054, SINK_REJECT, "larger than the stream's max_msg_size"},
    {10059, SINK_DOWN, "the stream does not exist"},
    {10060, SINK_FATAL, "the subject belongs to another stream than the one in the URL"},
    {10063, SINK_DOWN, "the stream is catching up with its leader"},
    {10070, SINK_DOWN, "somebody else has written to the stream, with exclusive=on"},
    {10071, SINK_DOWN, "somebody else has written to the stream, with exclusive=on"},
    {10076, SINK_DOWN, "JetStream is not enabled"},
    {10077, SINK_DOWN, "the stream is full, with discard=new, or could not write"},
    {10097, SINK_REJECT, "more than 64 KiB of headers"},
    {10109, SINK_DOWN, "the stream is sealed"},
    {10118, SINK_DOWN, "the stream is offline"},
    {10120, SINK_DOWN, "the account has no limits for this kind of stream"},
    {0, SINK_RETRY, "anything else"},
};

const struct nats_fate *nats_fate_of(int code)
{
    const struct nats_fate *f = nats_fates;
    while (f->code && f->code != code)
        f++;
    return f;
}
