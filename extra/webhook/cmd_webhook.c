/* cmd_webhook.c: outbox webhook, which creates and verifies signatures. listen.c has the receiver
 * of `webhook listen`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/text.h"
#include "extra/webhook/listen.h"
#include "sink/signature.h"

#define BODY_MAX ((size_t)64 << 20)
#define LISTEN_BODY_MAX ((int64_t)1 << 30)
#define TIMESTAMP_MAX INT64_C(999999999999999)

/* Checks the name in the same way as the consumer option webhook-secret-env, and borrows it. */
static int set_secret_env(void *field, const char *value, const struct option_def *o,
                          struct error *err)
{
    char *copy = NULL;
    int r = http_options_secret_env(&copy, value, o, err);
    free(copy);
    if (r != 0)
        return -1;
    return option_text(field, value, o, err);
}

static int set_address(void *field, const char *value, const struct option_def *o,
                       struct error *err)
{
    struct sockaddr_storage sa;
    if (!ipnet_of_text(value, &sa))
        return err_set(err, ERR_CONFIG, "\"%s\" is not an IP address", value);
    return option_text(field, value, o, err);
}

/* clang-format off */
#define OPTION_SECRET_FILE(help) \
    {"secret-file", "FILE", NULL, help, option_name, OWN(webhook_args, secret_file)}
#define OPTION_SECRET_ENV(help) \
    {"secret-env", "NAME", NULL, help, set_secret_env, OWN(webhook_args, secret_env)}
#define OPTION_ID {"id", "ID", NULL, "webhook-id", option_text, OWN(webhook_args, id)}
#define OPTION_TIMESTAMP(help) \
    {"timestamp", "SECONDS", NULL, help, option_long, OWN(webhook_args, timestamp), .min = 1, \
     .max = TIMESTAMP_MAX}
/* clang-format on */

static const struct option_def listen_options[] = {
    {"port", "N", "8026", "port to listen on; 0: any free port", option_long,
     OWN(webhook_args, port), .max = 65535},
    {"address", "ADDRESS", "127.0.0.1", "address to listen on", set_address,
     OWN(webhook_args, address)},
    {"verify", "FILE", NULL,
     "verify signatures with the secrets or public keys in this file; answer 401 to forgeries and "
     "409 to replays",
     option_name, OWN(webhook_args, secret_file)},
    OPTION_SECRET_ENV("like --verify, with the secrets in this environment variable"),
    {"status", "N", "204", "status to answer with, 200 to 599", option_long,
     OWN(webhook_args, status), .min = 200, .max = 599},
    {"delay", "DURATION", "0s", "how long to wait before answering", option_span,
     OWN(webhook_args, delay_ms)},
    {"retry-after", "SECONDS", NULL, "send this Retry-After header", commands_number,
     OWN(webhook_args, retry_after), .max = INT32_MAX},
    {"max-body", "SIZE", "65MiB",
     "maximum size of a body; all bodies in progress together may take twice that", option_size,
     OWN(webhook_args, body_max), .min = 1, .max = LISTEN_BODY_MAX},
    {"request-timeout", "DURATION", "60s", "time limit for receiving a request's body", option_span,
     OWN(webhook_args, request_ms), .min = 1},
    {"count", "N", NULL, "exit after this many requests", option_long, OWN(webhook_args, count),
     .min = 1},
    {"quiet", NULL, "no", "print nothing", option_bool, OWN(webhook_args, quiet)},
    {"json", NULL, "no", "print a JSON object for each request", option_bool, ARG(json)},
    OPTION_END,
};

static const struct option_def sign_options[] = {
    OPTION_SECRET_FILE("secrets (whsec_...) or private keys (whsk_...), one per line"),
    OPTION_SECRET_ENV("environment variable with secrets"),
    OPTION_ID,
    OPTION_TIMESTAMP("webhook-timestamp, seconds since 1970; default: now"),
    OPTION_END,
};

static const struct option_def verify_options[] = {
    OPTION_SECRET_FILE("secrets (whsec_...) or public keys (whpk_...), one per line"),
    OPTION_SECRET_ENV("environment variable with secrets"),
    OPTION_ID,
    OPTION_TIMESTAMP("webhook-timestamp"),
    {"signature", "TEXT", NULL, "webhook-signature: v1,... or v1a,..., separated by spaces",
     option_text, OWN(webhook_args, signature)},
    {"any-time", NULL, "no", "accept a signature of any age", option_bool,
     OWN(webhook_args, any_time)},
    OPTION_END,
};

static const struct option_def secret_options[] = {
    {"asymmetric", NULL, "no",
     "a pair of ed25519 keys: the sender signs with the private key, receivers verify with the "
     "public key",
     option_bool, OWN(webhook_args, asymmetric)},
    OPTION_END,
};

static const struct option_def public_options[] = {
    OPTION_SECRET_FILE("private keys (whsk_...), one per line"),
    OPTION_SECRET_ENV("environment variable with private keys"),
    OPTION_END,
};

/* Reads the secrets or keys for one purpose; the caller frees them. */
static int load_keys(const struct webhook_args *w, enum signature_use use,
                     struct signature_keys **ret, struct error *err)
{
    struct signature_source from = {w->secret_file, w->secret_env, use};
    if (!from.file && !from.variable)
        return commands_usage(err,
                              "secrets are missing: use --secret-file FILE or --secret-env NAME");
    return signature_keys_load(&from, ret, err);
}

/* Reads the keys, and the body from a file or, with "-", stdin. On success the caller frees *keys;
 * it always releases the body. */
static int load_message(const struct cli *cli, enum signature_use use, struct signature_keys **keys,
                        struct buf *body, struct error *err)
{
    const struct webhook_args *w = cli_own(cli);
    bool has_id = w->id && *w->id;
    if (!has_id)
        return commands_usage(err, "--id ID is missing");
    if (use == SIGNATURE_SIGN && strchr(w->id, '.'))
        return commands_usage(
            err, "--id: an id cannot contain a dot, which separates it from the timestamp in "
                 "the signed text");
    if (load_keys(w, use, keys, err) != 0)
        return -1;

    const char *path = cli->args.n_pos ? cli->args.pos[0] : "-";
    int e = fd_slurp(path, BODY_MAX, body);
    if (e == 0 && body->n < BODY_MAX)
        return 0;
    signature_keys_free(*keys);
    if (e)
        return err_errno(err, ERR_CONFIG, e, "%s: could not read the body", path);
    return err_set(err, ERR_INVALID, "%s: the body is over 64 MiB", path);
}

/* Prints the headers that a sender would send with this body. */
static int webhook_sign(struct cli *cli, struct error *err)
{
    const struct webhook_args *w = cli_own(cli);
    struct signature_keys *keys = NULL;
    struct buf body, out;
    buf_init(&body, BODY_MAX);
    buf_init(&out, 8192);
    int r = load_message(cli, SIGNATURE_SIGN, &keys, &body, err);
    if (r == 0) {
        struct signature_message m = {str_of(w->id), w->timestamp, {body.p, body.n}};
        if (!m.timestamp)
            m.timestamp = clock_wall(&clock_system) / 1000;
        buf_adds(&out, "webhook-id: ");
        output_clean(&out, w->id);
        buf_addf(&out, "\nwebhook-timestamp: %lld\nwebhook-signature: ", (long long)m.timestamp);
        signature_add(&out, keys, &m);
        buf_addc(&out, '\n');
        r = output_flush(&out, err);
        signature_keys_free(keys);
    }
    buf_release(&out);
    buf_release(&body);
    return r;
}

/* Prints the verdict on a signature. A forged signature is CLI_FOUND. */
static int webhook_verify(struct cli *cli, struct error *err)
{
    const struct webhook_args *w = cli_own(cli);
    if (!w->signature || !w->timestamp)
        return commands_usage(err, "verify requires --timestamp SECONDS and --signature TEXT");

    struct signature_keys *keys = NULL;
    struct buf body, out;
    buf_init(&body, BODY_MAX);
    buf_init(&out, 1024);
    int r = load_message(cli, SIGNATURE_VERIFY, &keys, &body, err);
    if (r == 0) {
        struct signature_message m = {str_of(w->id), w->timestamp, {body.p, body.n}};
        int64_t now = w->any_time ? 0 : clock_wall(&clock_system) / 1000;
        const char *why = signature_check(keys, &m, str_of(w->signature), now);
        if (why)
            output_addf(&out, "not genuine: %s\n", why);
        else
            buf_adds(&out, "genuine\n");
        r = output_flush(&out, err);
        if (r == 0 && why) {
            r = err_set(err, ERR_INVALID, "%s", why);
            err->code = CLI_FOUND;
        }
        signature_keys_free(keys);
    }
    buf_release(&out);
    buf_release(&body);
    return r;
}

/* Prints a new secret, and wipes it from memory. */
static int webhook_secret(struct cli *cli, struct error *err)
{
    struct buf b, public;
    struct stat st;
    /* With `webhook secret > file`, the shell creates the file, which every user may be able to
     * read. */
    bool is_file = fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode);
    if (is_file && st.st_mode & (S_IROTH | S_IWOTH))
        output_error("warning: any user of this machine can read the output file; run chmod "
                     "o-rwx on it, and create such files with umask 077");
    buf_init(&b, 512);
    buf_init(&public, 256);

    int r;
    if (((const struct webhook_args *)cli_own(cli))->asymmetric)
        r = signature_new_pair(&b, &public, err);
    else
        r = signature_new_secret(&b, err);
    buf_addc(&b, '\n');
    if (public.n)
        buf_addf(&b, "# for receivers: %s\n", buf_cstr(&public));
    if (r == 0)
        r = output_flush(&b, err);

    if (b.p)
        explicit_bzero(b.p, b.cap);
    buf_release(&b);
    buf_release(&public);
    return r;
}

/* Prints the public key of each private key, for receivers. */
static int webhook_public(struct cli *cli, struct error *err)
{
    struct signature_keys *keys = NULL;
    struct buf b;
    if (load_keys(cli_own(cli), SIGNATURE_VERIFY, &keys, err) != 0)
        return -1;
    buf_init(&b, 4096);
    int r = signature_public(&b, keys, err);
    if (r == 0)
        r = output_flush(&b, err);
    buf_release(&b);
    signature_keys_free(keys);
    return r;
}

const struct command cmd_webhook[] = {
    {"webhook", "listen", NULL, "receive, verify and print webhooks, and answer as configured",
     .options = listen_options, .bare = true, .json = JSON_LINES(fields_webhook),
     .run = listen_run},
    {"webhook", "sign", "[FILE]", "sign a body from a file or stdin, and print the headers",
     .options = sign_options, .max = 1, .bare = true, .run = webhook_sign},
    {"webhook", "verify", "[FILE]",
     "verify the signature of a body; exit status 1 if it is not genuine",
     .options = verify_options, .max = 1, .bare = true, .run = webhook_verify},
    {"webhook", "secret", NULL, "print a new signing secret, or a key pair",
     .options = secret_options, .bare = true, .run = webhook_secret},
    {"webhook", "public", NULL, "print the public keys of private keys", .options = public_options,
     .bare = true, .run = webhook_public},
    {NULL},
};
