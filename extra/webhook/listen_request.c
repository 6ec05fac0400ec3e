/* listen_request.c: a request to `webhook listen`, from its head to its answer: checks that it is
 * signed, fresh and not a replay, and prints it. The daemon calls listen_take and listen_forget.
 * All data in a request is untrusted and is sanitized before it reaches the terminal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "base/utf8.h"
#include "extra/webhook/listen.h"
#include "extra/webhook/replay.h"
#include "sink/signature.h"

/* ---- verification ---- */

#define ID_MAX 1024

/* The status of the answer and the text to print about the request. */
struct verdict {
    unsigned status;
    const char *text;
};

/* The headers needed to check a signature. p == NULL: the header is missing. */
struct claims {
    struct str id, timestamp;
    struct buf signatures; /* values of all signature headers, separated by blanks */
    bool twice;            /* the request had a second id or timestamp */
};

/* Collects the headers of a signature. Header names are case-insensitive. */
static enum MHD_Result note_claim(void *claims, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    struct claims *c = claims;
    struct str text = str_of(value ? value : "");
    struct str *field = NULL; /* a header that may occur only once */
    (void)kind;
    if (strcasecmp(name, "webhook-id") == 0)
        field = &c->id;
    if (strcasecmp(name, "webhook-timestamp") == 0)
        field = &c->timestamp;
    if (field) {
        c->twice = c->twice || field->p;
        *field = text;
    }
    if (strcasecmp(name, "webhook-signature") == 0) {
        if (c->signatures.n)
            buf_addc(&c->signatures, ' ');
        buf_addstr(&c->signatures, text);
    }
    return MHD_YES;
}

/* Returns why a request is not authentic; NULL if it is. Fills in the signed message. */
static const char *check_claims(struct listener *l, const struct claims *c,
                                struct signature_message *m, int64_t now)
{
    struct str signatures = {c->signatures.p, c->signatures.n};
    m->id = c->id;
    if (c->twice)
        return "more than one webhook-id or webhook-timestamp";
    if (!c->id.n)
        return "no webhook-id";
    if (c->id.n > ID_MAX)
        return "webhook-id is too long";
    if (!c->timestamp.n)
        return "no webhook-timestamp";
    if (!signature_timestamp(c->timestamp, &m->timestamp))
        return "webhook-timestamp is not a number of seconds";
    return signature_check(l->keys, m, signatures, now);
}

/* Decides how to answer a complete request. Refuses a request that is not authentic, and a replay
 * of an accepted message. A sender whose first attempt was lost retries with a new timestamp, which
 * is not a replay. Without keys, accepts every request. */
static struct verdict judge_request(struct listener *l, struct visit *v)
{
    unsigned status = (unsigned)l->w->status;
    if (v->refused)
        return (struct verdict){v->refused, "too large, or too many bodies at once"};
    if (!l->keys)
        return (struct verdict){status, ""};

    struct claims c = {.twice = false};
    struct signature_message m = {.body = {v->body.p, v->body.n}};
    int64_t now = clock_wall(&clock_system) / 1000;
    buf_init(&c.signatures, LISTEN_HEAD_MAX);
    MHD_get_connection_values(v->conn, MHD_HEADER_KIND, note_claim, &c);
    const char *why = check_claims(l, &c, &m, now);
    buf_release(&c.signatures);
    if (why)
        return (struct verdict){MHD_HTTP_UNAUTHORIZED, why};

    enum replay known = replay_known(l->memory, &m, now);
    if (known == REPLAY_REPLAY)
        return (struct verdict){MHD_HTTP_CONFLICT,
                                "a replay: this exact request was accepted before"};
    bool accepted = status < 300;
    if (accepted)
        replay_accept(l->memory, &m, now);
    if (known == REPLAY_REPEAT)
        return (struct verdict){status, "genuine, but a repeat: this id was accepted before"};
    return (struct verdict){status, "genuine"};
}

/* ---- printing ---- */

static const char *header_of(struct visit *v, const char *name)
{
    return MHD_lookup_connection_value(v->conn, MHD_HEADER_KIND, name);
}

/* Prints a line about the request and one with its body. All of it is untrusted. */
static void print_text(struct listener *l, struct visit *v, const char *what, const char *verdict)
{
    static const char *const names[] = {"ce-type", "ce-subject", "webhook-id"};
    char now[CLOCK_RFC3339_SIZE];
    clock_rfc3339(clock_wall(&clock_system), now);
    buf_addf(&l->line, "%s ", now);
    output_clean(&l->line, what);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const char *value = header_of(v, names[i]);
        if (!value)
            continue;
        buf_addc(&l->line, ' ');
        output_clean(&l->line, value);
    }
    buf_addf(&l->line, " -> %u", v->status);
    if (l->keys)
        buf_addf(&l->line, ", %s", verdict);
    buf_adds(&l->line, "\n  ");

    /* The body is cleaned in place and in one pass, because a hostile body may have 64 MiB. */
    struct buf *b = &l->line;
    size_t start = b->n;
    buf_add(b, v->body.p, v->body.n);
    buf_addc(b, '\0'); /* text_clean ends its output with a NUL */
    if (!b->failed)
        b->n = start + text_clean(b->p + start, v->body.n + 1, b->p + start, v->body.n);
    buf_addc(b, '\n');
}

/* A request to print. */
struct shown_request {
    const char *what, *verdict; /* verdict: NULL if it was not verified */
    int64_t status;
    struct str body;
    struct MHD_Connection *conn;
};

/* Adds a header to the JSON object b. A name that is not UTF-8 is converted. */
static enum MHD_Result add_header(void *b, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    char clean[256];
    (void)kind;
    if (!utf8_valid(str_of(name), NULL)) {
        text_clean(clean, sizeof clean, name, strlen(name));
        name = clean;
    }
    listing_member_text(b, name, value ? value : "");
    return MHD_YES;
}

static void add_headers(struct buf *b, const void *row)
{
    const struct shown_request *s = row;
    buf_addc(b, '{');
    MHD_get_connection_values(s->conn, MHD_HEADER_KIND, add_header, b);
    buf_addc(b, '}');
}

#define AT(member) .at = offsetof(struct shown_request, member)
const struct listing_field fields_webhook[] = {
    {"request", LISTING_TEXT, AT(what), "method and path"},
    {"status", LISTING_INT, AT(status), "status of the answer"},
    {"verdict", LISTING_TEXT, AT(verdict),
     "whether the request is genuine; null if it was not verified"},
    {"headers", LISTING_OWN, .json = add_headers, .kind = "object",
     .help = "headers of the request"},
    {"body", LISTING_STR, AT(body), "body of the request; null if it is not UTF-8"},
    {NULL},
};
#undef AT

/* Prints a complete request, unless --quiet was given. An output error is stored in l->err and ends
 * the loop. */
static void print_request(struct listener *l, struct visit *v, const char *what,
                          const char *verdict)
{
    if (l->w->quiet || l->err.code)
        return;
    if (l->cli->args.json) {
        struct shown_request row = {
            .what = what,
            .verdict = l->keys ? verdict : NULL,
            .status = v->status,
            .body = {v->body.p ? v->body.p : "", v->body.n},
            .conn = v->conn,
        };
        listing_object(&l->line, fields_webhook, &row);
        buf_addc(&l->line, '\n');
    } else {
        print_text(l, v, what, verdict);
    }
    if (l->line.failed) { /* too large to print: a truncated line would mislead */
        buf_clear(&l->line);
        buf_addf(&l->line, "(%zu bytes)\n", v->body.n);
    }
    if (output_flush(&l->line, &l->err) == 0)
        output_end(&l->err);
}

/* ---- receiving and answering ---- */

static enum MHD_Result answer_request(struct listener *l, struct visit *v)
{
    v->answered = true;
    l->answered++;
    return MHD_queue_response(v->conn, v->status, l->answer);
}

static void drop_body(struct listener *l, struct visit *v)
{
    l->held -= v->body.n;
    buf_release(&v->body);
}

/* Handles a complete request: verifies, prints and answers it, now or later. */
static enum MHD_Result complete_request(struct listener *l, struct visit *v, const char *method,
                                        const char *url)
{
    char what[512];
    v->complete = true;
    if (v->client)
        v->client->deadline = CLOCK_NEVER;

    struct verdict verdict = judge_request(l, v);
    v->status = verdict.status;
    snprintf(what, sizeof(what), "%s %s", method, url);
    print_request(l, v, what, verdict.text);

    drop_body(l, v);
    if (!l->w->delay_ms)
        return answer_request(l, v);

    /* Suspend the connection until its answer is due. */
    v->due = clock_mono(&clock_system) + l->w->delay_ms * MS_NS;
    v->next = NULL;
    if (l->last)
        l->last->next = v;
    else
        l->first = v;
    l->last = v;
    MHD_suspend_connection(v->conn);
    return MHD_YES;
}

/* Adds a piece to the body, unless the body, or all bodies together, would become too large. In
 * that case it drops the body received so far and ignores the rest. */
static void keep_body(struct listener *l, struct visit *v, const char *data, size_t n)
{
    if (v->refused)
        return;
    if (n > l->body_max - v->body.n) {
        v->refused = MHD_HTTP_CONTENT_TOO_LARGE;
    } else if (n > l->bodies_max - l->held) {
        v->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
    } else {
        buf_add(&v->body, data, n);
        if (v->body.failed)
            v->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
        else
            l->held += n;
    }
    if (v->refused)
        drop_body(l, v);
}

/* Starts a visit when the head of a request has arrived. If the announced body is too large,
 * answers before the client sends the body. */
static enum MHD_Result start_visit(struct listener *l, struct MHD_Connection *conn, void **state)
{
    struct visit *v = calloc(1, sizeof(*v));
    *state = v;
    if (!v)
        return MHD_NO;
    v->conn = conn;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (info)
        v->client = info->socket_context;
    listen_give_time(l, v->client, l->w->request_ms);
    buf_init(&v->body, l->body_max);

    const char *announced = header_of(v, "Content-Length");
    bool too_large = announced && strtoull(announced, NULL, 10) > l->body_max;
    if (!too_large)
        return MHD_YES;
    v->complete = true;
    v->status = MHD_HTTP_CONTENT_TOO_LARGE;
    return answer_request(l, v);
}

enum MHD_Result listen_take(void *ctx, struct MHD_Connection *conn, const char *url,
                            const char *method, const char *version, const char *data, size_t *size,
                            void **state)
{
    struct listener *l = ctx;
    struct visit *v = *state;
    (void)version;
    if (!v)
        return start_visit(l, conn, state);
    if (*size) {
        keep_body(l, v, data, *size);
        *size = 0;
        return MHD_YES;
    }
    if (!v->complete)
        return complete_request(l, v, method, url);
    if (!v->answered)
        return answer_request(l, v);
    return MHD_YES;
}

/* Also sets the deadline for the client's next request. */
void listen_forget(void *ctx, struct MHD_Connection *conn, void **state,
                   enum MHD_RequestTerminationCode why)
{
    struct listener *l = ctx;
    struct visit *v = *state;
    (void)conn;
    (void)why;
    if (!v)
        return;
    listen_give_time(l, v->client, l->w->request_ms + LISTEN_BETWEEN_MS);
    drop_body(l, v);
    free(v);
    *state = NULL;
}

void listen_resume(struct listener *l, bool all)
{
    int64_t now = clock_mono(&clock_system);
    while (l->first && (all || l->first->due <= now)) {
        struct visit *v = l->first;
        l->first = v->next;
        if (!l->first)
            l->last = NULL;
        MHD_resume_connection(v->conn);
    }
}
