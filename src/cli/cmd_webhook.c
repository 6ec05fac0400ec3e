/* cmd_webhook.c: signatures by hand. The receiver that `webhook listen` runs is in listen.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "sink/signature.h"

#define BODY_MAX ((size_t)64 << 20)
#define LISTEN_BODY_MAX ((int64_t)1 << 30)
#define TIMESTAMP_MAX INT64_C(999999999999999)

/* set_secret_env checks the name as a consumer's option does, and borrows it. */
static int set_secret_env(void *field, const char *value, const struct option_def *o,
                          struct error *err)
{
    char *copy = NULL;
    int r = http_options_secret_env(&copy, value, o, err);
    free(copy);
    return r == 0 ? option_text(field, value, o, err) : -1;
}

static int set_address(void *field, const char *value, const struct option_def *o,
                       struct error *err)
{
    struct sockaddr_storage sa;
    if (!ipnet_of_text(value, &sa))
        return err_set(err, ERR_CONFIG, "\"%s\" is no address", value);
    return option_text(field, value, o, err);
}

static int set_retry_after(void *field, const char *value, const struct option_def *o,
                           struct error *err)
{
    struct number_arg *n = field;
    (void)o;
    if (text_int(value, 0, INT32_MAX, &n->value, err) != 0)
        return -1;
    n->given = true;
    return 0;
}

/* clang-format off */
#define OPTION_SECRET_FILE(help) {"secret-file", "FILE", NULL, help, option_name, ARG(webhook.secret_file)}
#define OPTION_SECRET_ENV(help) {"secret-env", "NAME", NULL, help, set_secret_env, ARG(webhook.secret_env)}
#define OPTION_ID {"id", "ID", NULL, "webhook-id", option_text, ARG(webhook.id)}
#define OPTION_TIMESTAMP(help) {"timestamp", "SECONDS", NULL, help, option_long, ARG(webhook.timestamp), .min = 1, .max = TIMESTAMP_MAX}
/* clang-format on */

static const struct option_def listen_options[] = {
    {"port", "N", "8026", "port to listen on; 0 for any free one", option_long, ARG(webhook.port),
     .max = 65535},
    {"address", "ADDRESS", "127.0.0.1", "address to listen on", set_address, ARG(webhook.address)},
    {"verify", "FILE", NULL,
     "verify signatures with the secrets or public keys in this file; answer 401 to forgeries, 409 "
     "to replays",
     option_name, ARG(webhook.secret_file)},
    OPTION_SECRET_ENV("the same with the secrets in this environment variable"),
    {"status", "N", "204", "status to answer with, 200 to 599", option_long, ARG(webhook.status),
     .min = 200, .max = 599},
    {"delay", "DURATION", "0s", "how long to wait before answering", option_span,
     ARG(webhook.delay_ms)},
    {"retry-after", "SECONDS", NULL, "send this Retry-After header", set_retry_after,
     ARG(webhook.retry_after)},
    {"max-body", "SIZE", "65MiB",
     "maximum size of a body; all bodies in progress may take twice that", option_size,
     ARG(webhook.body_max), .min = 1, .max = LISTEN_BODY_MAX},
    {"request-timeout", "DURATION", "60s", "how long a request's body may take to arrive",
     option_span, ARG(webhook.request_ms), .min = 1},
    {"count", "N", NULL, "exit after this many requests", option_long, ARG(webhook.count),
     .min = 1},
    {"quiet", NULL, "no", "print nothing", option_bool, ARG(webhook.quiet)},
    {"json", NULL, "no", "print a JSON object for each request", option_bool, ARG(json)},
    OPTION_END,
};

static const struct option_def sign_options[] = {
    OPTION_SECRET_FILE("secrets (whsec_...) or private keys (whsk_...), one per line"),
    OPTION_SECRET_ENV("environment variable with secrets"),
    OPTION_ID,
    OPTION_TIMESTAMP("webhook-timestamp, seconds since 1970; now if not given"),
    OPTION_END,
};

static const struct option_def verify_options[] = {
    OPTION_SECRET_FILE("secrets (whsec_...) or public keys (whpk_...), one per line"),
    OPTION_SECRET_ENV("environment variable with secrets"),
    OPTION_ID,
    OPTION_TIMESTAMP("webhook-timestamp"),
    {"signature", "TEXT", NULL, "webhook-signature: v1,... or v1a,... and so on", option_text,
     ARG(webhook.signature)},
    {"any-time", NULL, "no", "accept a signature of any age", option_bool, ARG(webhook.any_time)},
    OPTION_END,
};

static const struct option_def secret_options[] = {
    {"asymmetric", NULL, "no",
     "a pair of ed25519 keys: the private one signs, receivers verify with the public one",
     option_bool, ARG(webhook.asymmetric)},
    OPTION_END,
};

static const struct option_def public_options[] = {
    OPTION_SECRET_FILE("private keys (whsk_...), one per line"),
    OPTION_SECRET_ENV("environment variable with them"),
    OPTION_END,
};

static int load_keys(const struct webhook_args *w, enum signature_use use,
                     struct signature_keys **ret, struct error *err)
{
    struct signature_source from = {w->secret_file, w->secret_env, use};
    if (!from.file && !from.variable)
        return options_usage(err, "say --secret-file FILE or --secret-env NAME");
    return signature_keys_load(&from, ret, err);
}

/* load reads secrets and body, which the caller releases. */
static int load(const struct cli *cli, enum signature_use use, struct signature_keys **keys,
                struct buf *body, struct error *err)
{
    const struct webhook_args *w = &cli->args.webhook;
    const char *path = cli->args.n_pos ? cli->args.pos[0] : "-";
    if (!w->id || !*w->id)
        return options_usage(err, "say --id ID");
    if (use == SIGNATURE_SIGN && strchr(w->id, '.'))
        return options_usage(
            err,
            "an id has no dot in it: it could not be told from the time that is signed with it");
    if (load_keys(w, use, keys, err) != 0)
        return -1;
    int e = lines_slurp(path, BODY_MAX, body);
    if (e == 0 && body->n < BODY_MAX)
        return 0;
    signature_keys_free(*keys);
    if (e == 0)
        return err_set(err, ERR_INVALID, "%s: over 64 MiB", path);
    return err_errno(err, ERR_CONFIG, e, "%s: could not read the body", path);
}

static int sign(struct cli *cli, struct error *err)
{
    const struct webhook_args *w = &cli->args.webhook;
    struct signature_keys *keys = NULL;
    struct buf body, out;
    buf_init(&body, BODY_MAX);
    buf_init(&out, 8192);
    int r = load(cli, SIGNATURE_SIGN, &keys, &body, err);
    if (r == 0) {
        struct signature_message m = {str_of(w->id),
                                      w->timestamp ? w->timestamp
                                                   : clock_wall(&clock_system) / 1000,
                                      {body.p, body.n}};
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

static int verify(struct cli *cli, struct error *err)
{
    const struct webhook_args *w = &cli->args.webhook;
    struct signature_keys *keys = NULL;
    struct buf body;
    if (!w->signature || !w->timestamp)
        return options_usage(err, "say --timestamp SECONDS and --signature TEXT");
    buf_init(&body, BODY_MAX);
    int r = load(cli, SIGNATURE_VERIFY, &keys, &body, err);
    if (r == 0) {
        struct signature_message m = {str_of(w->id), w->timestamp, {body.p, body.n}};
        int64_t now = w->any_time ? 0 : clock_wall(&clock_system) / 1000;
        const char *why = signature_check(keys, &m, str_of(w->signature), now);
        if (why) {
            printf("not genuine: %s\n", why);
            r = err_set(err, ERR_INVALID, "%s", why);
            err->code = CLI_FOUND;
        } else {
            puts("genuine");
        }
        signature_keys_free(keys);
    }
    buf_release(&body);
    return r;
}

/* caution: `webhook secret > file` makes the file with the permissions that the shell gives it. */
static void caution(void)
{
    struct stat st;
    bool file = fstat(STDOUT_FILENO, &st) == 0 && S_ISREG(st.st_mode);
    if (file && st.st_mode & (S_IROTH | S_IWOTH))
        output_error("warning: everybody on this machine can read the file this is written to; "
                     "chmod o-rwx it, and make "
                     "such files with umask 077");
}

static int secret(struct cli *cli, struct error *err)
{
    struct buf b, public;
    int r;
    caution();
    buf_init(&b, 512);
    buf_init(&public, 256);
    if (cli->args.webhook.asymmetric)
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

static int public(struct cli *cli, struct error *err)
{
    struct signature_keys *keys = NULL;
    struct buf b;
    if (load_keys(&cli->args.webhook, SIGNATURE_VERIFY, &keys, err) != 0)
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
    {.name = "webhook",
     .sub = "listen",
     .help = "receive, verify and print webhooks, and answer as told",
     .options = listen_options,
     .bare = true,
     .run = listen_run},
    {.name = "webhook",
     .sub = "sign",
     .args = "[FILE]",
     .max = 1,
     .help = "sign a body from a file or stdin, and print the headers",
     .options = sign_options,
     .bare = true,
     .run = sign},
    {.name = "webhook",
     .sub = "verify",
     .args = "[FILE]",
     .max = 1,
     .help = "verify the signature of a body; exit status 1 if it is not genuine",
     .options = verify_options,
     .bare = true,
     .run = verify},
    {.name = "webhook",
     .sub = "secret",
     .help = "print a new signing secret, or a key pair",
     .options = secret_options,
     .bare = true,
     .run = secret},
    {.name = "webhook",
     .sub = "public",
     .help = "print the public keys of private keys",
     .options = public_options,
     .bare = true,
     .run = public},
    {.name = NULL},
};
