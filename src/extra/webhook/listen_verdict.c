/* listen_verdict.c: how `webhook listen` answers a request: whether it is signed, fresh, and not a
 * replay. */
#include <strings.h>

#include "extra/webhook/listen.h"
#include "extra/webhook/replay.h"
#include "sink/signature.h"

#define ID_MAX 1024

/* The headers that a signature is checked with. p == NULL: the header is missing. */
struct claims {
    struct str id, timestamp;
    struct buf signatures; /* of all signature headers, separated by blanks */
    bool twice;            /* there was a second id or timestamp */
};

/* claim_once takes a header that may occur only once. */
static void claim_once(struct claims *c, struct str *field, struct str value)
{
    if (field->p)
        c->twice = true;
    *field = value;
}

/* note_claim collects the headers of a signature. Names of headers ignore case. */
static enum MHD_Result note_claim(void *claims, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct claims *c = claims;
    struct str text = str_of(value ? value : "");
    (void)kind;
    if (strcasecmp(name, "webhook-id") == 0)
        claim_once(c, &c->id, text);
    if (strcasecmp(name, "webhook-timestamp") == 0)
        claim_once(c, &c->timestamp, text);
    if (strcasecmp(name, "webhook-signature") == 0) {
        if (c->signatures.n)
            buf_addc(&c->signatures, ' ');
        buf_addstr(&c->signatures, text);
    }
    return MHD_YES;
}

/* judge_genuine refuses a replay of what was accepted before. A sender whose first attempt got lost
 * tries again with a new timestamp, so that is no replay. */
static struct verdict judge_genuine(struct listener *l, const struct signature_message *m,
                                    int64_t now)
{
    unsigned status = (unsigned)l->w->status;
    enum replay known = replay_known(l->memory, m, now);
    if (known == REPLAY_REPLAY)
        return (struct verdict){MHD_HTTP_CONFLICT,
                                "a replay: this very request was accepted before"};

    bool accepted = status < 300;
    if (accepted)
        replay_accept(l->memory, m, now);
    if (known == REPLAY_REPEAT)
        return (struct verdict){status, "genuine, but a repeat: this id was accepted before"};
    return (struct verdict){status, "genuine"};
}

/* missing_in says what is wrong with the headers, before any signature is checked; NULL: nothing.
 * It reads the timestamp into *ret. */
static const char *missing_in(const struct claims *c, int64_t *ret)
{
    if (c->twice)
        return "more than one webhook-id or webhook-timestamp";
    if (!c->id.n)
        return "no webhook-id";
    if (c->id.n > ID_MAX)
        return "webhook-id is too long";
    if (!c->timestamp.n)
        return "no webhook-timestamp";
    if (!signature_timestamp(c->timestamp, ret))
        return "webhook-timestamp is not a number of seconds";
    return NULL;
}

static struct verdict judge_claims(struct listener *l, struct visit *v, const struct claims *c)
{
    int64_t now = clock_wall(&clock_system) / 1000;
    struct signature_message m = {.id = c->id, .body = {v->body.p, v->body.n}};
    struct str signatures = {c->signatures.p, c->signatures.n};
    const char *why = missing_in(c, &m.timestamp);
    if (!why)
        why = signature_check(l->keys, &m, signatures, now);
    if (why)
        return (struct verdict){MHD_HTTP_UNAUTHORIZED, why};
    return judge_genuine(l, &m, now);
}

struct verdict listen_judge(struct listener *l, struct visit *v)
{
    struct claims c = {.twice = false};
    if (v->refused)
        return (struct verdict){v->refused, "too large, or too much at once"};
    if (!l->keys)
        return (struct verdict){(unsigned)l->w->status, ""};

    buf_init(&c.signatures, LISTEN_HEAD_MAX);
    MHD_get_connection_values(v->conn, MHD_HEADER_KIND, note_claim, &c);
    struct verdict verdict = judge_claims(l, v, &c);
    buf_release(&c.signatures);
    return verdict;
}
