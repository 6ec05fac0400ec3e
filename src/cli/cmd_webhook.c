/* cmd_webhook.c: signatures by hand. The receiver that `webhook listen` runs is in listen.c. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "sink/signature.h"

#define BODY_MAX ((size_t)64 << 20)
#define LISTEN_BODY_MAX ((int64_t)1 << 30)
#define TIMESTAMP_MAX INT64_C(999999999999999)

static struct webhook_args *of(void *args)
{
    return &((struct args *)args)->webhook;
}

static int set_secret_file(void *args, const char *value, struct error *err)
{
    if (!*value) return err_set(err, ERR_CONFIG, "the file's name is empty");
    of(args)->secret_file = value;
    return 0;
}

static int set_secret_env(void *args, const char *value, struct error *err)
{
    struct http_options o = {0};
    int r = http_options_secret_env(&o, value, err);
    http_options_release(&o);
    if (r == 0) of(args)->secret_env = value;
    return r;
}

static int set_id(void *args, const char *value, struct error *err)
{
    (void)err;
    of(args)->id = value;
    return 0;
}

static int set_timestamp(void *args, const char *value, struct error *err)
{
    return text_int(value, 1, TIMESTAMP_MAX, &of(args)->timestamp, err);
}

static int set_signature(void *args, const char *value, struct error *err)
{
    (void)err;
    of(args)->signature = value;
    return 0;
}

static int set_any_time(void *args, const char *value, struct error *err)
{
    return text_bool(value, &of(args)->any_time, err);
}

static int set_port(void *args, const char *value, struct error *err)
{
    return text_int(value, 0, 65535, &of(args)->port, err);
}

static int set_address(void *args, const char *value, struct error *err)
{
    struct sockaddr_storage sa;
    if (!ipnet_of_text(value, &sa)) return err_set(err, ERR_CONFIG, "\"%s\" is no address", value);
    of(args)->address = value;
    return 0;
}

static int set_status(void *args, const char *value, struct error *err)
{
    return text_int(value, 200, 599, &of(args)->status, err);
}

static int set_delay(void *args, const char *value, struct error *err)
{
    return text_duration(value, &of(args)->delay_ms, err);
}

static int set_request_timeout(void *args, const char *value, struct error *err)
{
    if (text_duration(value, &of(args)->request_ms, err) != 0) return -1;
    if (of(args)->request_ms > 0) return 0;
    return err_set(err, ERR_CONFIG, "a request takes some time");
}

static int set_max_body(void *args, const char *value, struct error *err)
{
    if (text_size(value, &of(args)->body_max, err) != 0) return -1;
    bool good = of(args)->body_max >= 1 && of(args)->body_max <= LISTEN_BODY_MAX;
    return good ? 0 : err_set(err, ERR_CONFIG, "\"%s\" is not between 1 and 1GiB", value);
}

static int set_retry_after(void *args, const char *value, struct error *err)
{
    return text_int(value, 0, INT32_MAX, &of(args)->retry_after, err);
}

static int set_count(void *args, const char *value, struct error *err)
{
    return text_int(value, 1, INT64_MAX, &of(args)->count, err);
}

static int set_quiet(void *args, const char *value, struct error *err)
{
    return text_bool(value, &of(args)->quiet, err);
}

static int set_asymmetric(void *args, const char *value, struct error *err)
{
    return text_bool(value, &of(args)->asymmetric, err);
}

static const struct cli_option listen_options[] = {
    {{"port", "N", "8026", "port to listen on; 0: any that is free", set_port}, 0, false},
    {{"address", "ADDRESS", "127.0.0.1", "address to listen on", set_address}, 0, false},
    {{"verify", "FILE", NULL,
      "verify signatures with the secrets or public keys in this file; answer 401 to what is not genuine, 409 to replays",
      set_secret_file},
     0,
     false},
    {{"secret-env", "NAME", NULL, "the same with the secrets in this environment variable", set_secret_env}, 0, false},
    {{"status", "N", "204", "what to answer, 200 to 599", set_status}, 0, false},
    {{"delay", "DURATION", "0s", "how long to take for it", set_delay}, 0, false},
    {{"retry-after", "SECONDS", NULL, "send this Retry-After along", set_retry_after}, 0, false},
    {{"max-body", "SIZE", "65MiB", "largest body to take; all that are on their way may be twice that", set_max_body},
     0,
     false},
    {{"request-timeout", "DURATION", "60s", "how long the body of a request may take to come", set_request_timeout},
     0,
     false},
    {{"count", "N", NULL, "end after this many requests", set_count}, 0, false},
    {{"quiet", NULL, "no", "print nothing", set_quiet}, 0, false},
    {{"json", NULL, "no", "print a JSON object for each request", options_set_json}, 0, false},
    OPTION_END,
};

static const struct cli_option sign_options[] = {
    {{"secret-file", "FILE", NULL, "secrets, whsec_... or private keys, whsk_... one to a line", set_secret_file},
     0,
     false},
    {{"secret-env", "NAME", NULL, "environment variable with secrets", set_secret_env}, 0, false},
    {{"id", "ID", NULL, "webhook-id", set_id}, 0, false},
    {{"timestamp", "SECONDS", NULL, "webhook-timestamp, since 1970; if not given to sign, now", set_timestamp},
     0,
     false},
    OPTION_END,
};

static const struct cli_option verify_options[] = {
    {{"secret-file", "FILE", NULL, "secrets, whsec_... or public keys, whpk_... one to a line", set_secret_file},
     0,
     false},
    {{"secret-env", "NAME", NULL, "environment variable with secrets", set_secret_env}, 0, false},
    {{"id", "ID", NULL, "webhook-id", set_id}, 0, false},
    {{"timestamp", "SECONDS", NULL, "webhook-timestamp", set_timestamp}, 0, false},
    {{"signature", "TEXT", NULL, "webhook-signature: v1,... or v1a,... and what follows it", set_signature}, 0, false},
    {{"any-time", NULL, "no", "however long ago it was signed", set_any_time}, 0, false},
    OPTION_END,
};

static const struct cli_option secret_options[] = {
    {{"asymmetric", NULL, "no",
      "a pair of ed25519 keys: we sign with the private one, receivers verify with the public one", set_asymmetric},
     0,
     false},
    OPTION_END,
};

static const struct cli_option public_options[] = {
    {{"secret-file", "FILE", NULL, "private keys, whsk_... one to a line", set_secret_file}, 0, false},
    {{"secret-env", "NAME", NULL, "environment variable with them", set_secret_env}, 0, false},
    OPTION_END,
};

static int load_keys(const struct webhook_args *w, enum signature_use use, struct signature_keys **ret,
                     struct error *err)
{
    struct signature_source from = {w->secret_file, w->secret_env, use};
    if (!from.file && !from.variable) return options_usage(err, "say --secret-file FILE or --secret-env NAME");
    return signature_keys_load(&from, ret, err);
}

/* load reads secrets and body, which the caller releases. */
static int load(const struct cli *cli, enum signature_use use, struct signature_keys **keys, struct buf *body,
                struct error *err)
{
    const struct webhook_args *w = &cli->args.webhook;
    const char *path = cli->args.n_pos ? cli->args.pos[0] : "-";
    if (!w->id || !*w->id) return options_usage(err, "say --id ID");
    if (use == SIGNATURE_SIGN && strchr(w->id, '.'))
        return options_usage(err, "an id has no dot in it: it could not be told from the time that is signed with it");
    if (load_keys(w, use, keys, err) != 0) return -1;
    int e = lines_slurp(path, BODY_MAX, body);
    if (e == 0 && body->n < BODY_MAX) return 0;
    signature_keys_free(*keys);
    if (e == 0) return err_set(err, ERR_INVALID, "%s: over 64 MiB", path);
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
        struct signature_message m = {
            str_of(w->id), w->timestamp ? w->timestamp : clock_wall(&clock_system) / 1000, {body.p, body.n}};
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
    if (!w->signature || !w->timestamp) return options_usage(err, "say --timestamp SECONDS and --signature TEXT");
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
        output_error(
            "warning: everybody on this machine can read the file this is written to; chmod o-rwx it, and make "
            "such files with umask 077");
}

static int secret(struct cli *cli, struct error *err)
{
    struct buf b, public;
    int r;
    caution();
    buf_init(&b, 512);
    buf_init(&public, 256);
    if (cli->args.webhook.asymmetric) r = signature_new_pair(&b, &public, err);
    else r = signature_new_secret(&b, err);
    buf_addc(&b, '\n');
    if (public.n) buf_addf(&b, "# for receivers: %s\n", buf_cstr(&public));
    if (r == 0) r = output_flush(&b, err);
    if (b.p) explicit_bzero(b.p, b.cap);
    buf_release(&b);
    buf_release(&public);
    return r;
}

static int public(struct cli *cli, struct error *err)
{
    struct signature_keys *keys = NULL;
    struct buf b;
    if (load_keys(&cli->args.webhook, SIGNATURE_VERIFY, &keys, err) != 0) return -1;
    buf_init(&b, 4096);
    int r = signature_public(&b, keys, err);
    if (r == 0) r = output_flush(&b, err);
    buf_release(&b);
    signature_keys_free(keys);
    return r;
}

const struct command cmd_webhook[] = {
    {.name = "webhook",
     .sub = "listen",
     .help = "receive webhooks, print and verify them, and answer as told",
     .options = listen_options,
     .bare = true,
     .run = listen_run},
    {.name = "webhook",
     .sub = "sign",
     .args = "[FILE]",
     .max = 1,
     .help = "print the headers that sign a body, from a file or stdin",
     .options = sign_options,
     .bare = true,
     .run = sign},
    {.name = "webhook",
     .sub = "verify",
     .args = "[FILE]",
     .max = 1,
     .help = "see whether a body is what was signed; exit status 1 if it is not",
     .options = verify_options,
     .bare = true,
     .run = verify},
    {.name = "webhook",
     .sub = "secret",
     .help = "print a new secret to sign with, or a pair of keys",
     .options = secret_options,
     .bare = true,
     .run = secret},
    {.name = "webhook",
     .sub = "public",
     .help = "print the public keys that belong to private ones",
     .options = public_options,
     .bare = true,
     .run = public},
    {.name = NULL},
};
