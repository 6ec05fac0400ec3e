#include "sink/nats_fate.h"

#include <string.h>

const struct nats_fate nats_fates[] = {
    /* Of the server: it is away, has no room, or does not let us. */
    {10002, NULL, SINK_DOWN, "the account has used up its storage"},
    {10008, NULL, SINK_DOWN, "JetStream is temporarily unavailable"},
    {10009, NULL, SINK_DOWN, "the cluster has no leader at the moment"},
    {10023, NULL, SINK_DOWN, "the server has used up its storage"},
    {10028, NULL, SINK_DOWN, "the server has no memory left for streams"},
    {10039, NULL, SINK_DOWN, "JetStream is not enabled for the account"},
    {10047, NULL, SINK_DOWN, "the server has no storage left for streams"},
    {10076, NULL, SINK_DOWN, "JetStream is not enabled"},
    {10120, NULL, SINK_DOWN, "the account has no limits for this kind of stream"},

    /* Of the state of a stream, which passes by itself. */
    {10063, NULL, SINK_DOWN, "the stream is catching up with its leader"},
    {10070, NULL, SINK_DOWN, "somebody else has written to the stream, with exclusive=on"},
    {10071, NULL, SINK_DOWN, "somebody else has written to the stream, with exclusive=on"},
    {10077, "per subject", SINK_REFUSED, "the subject is full, with discard_new_per_subject"},
    {10077, NULL, SINK_DOWN, "the stream is full, with discard=new, or could not write"},
    {10118, NULL, SINK_DOWN, "the stream is offline"},

    /* Of the stream, or of the subject. */
    {10059, NULL, SINK_REFUSED, "the stream does not exist"},
    {10060, NULL, SINK_REFUSED, "the subject belongs to another stream than the one in the URL"},
    {10065, NULL, SINK_REFUSED, "with create=on: another stream has its subjects"},
    {10109, NULL, SINK_REFUSED, "the stream is sealed"},

    /* Of the event. */
    {10054, NULL, SINK_REJECT, "larger than the stream's max_msg_size"},
    {10097, NULL, SINK_REJECT, "more than 64 KiB of headers"},

    {0, NULL, SINK_RETRY, "anything else"},
};

const struct nats_fate *nats_fate_of(int code, const char *words)
{
    const struct nats_fate *f = nats_fates;
    for (; f->code; f++) {
        bool matches = f->code == code && (!f->says || strstr(words, f->says));
        if (matches)
            break;
    }
    return f;
}
