/* Secrets, keys and signatures of webhooks. The input is three parts separated by NULs: secrets,
 * the header of a request, and its body. Secrets are read, or refused without being repeated. Our
 * own signatures verify and nothing else: not a body with one bit changed, not another id or time,
 * and not an attacker's header. */
#include "fuzz.h"
#include "sink/signature.h"

#define VARIABLE "OUTBOX_FUZZ_SECRET"
#define GOOD \
    "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="
#define NOW 1700000000

static struct signature_keys *keys_of(const char *words, struct error *err)
{
    struct signature_keys *keys = NULL;
    struct signature_source from = {NULL, VARIABLE, SIGNATURE_SIGN};
    if (setenv(VARIABLE, words, 1) != 0)
        abort();
    return signature_keys_load(&from, &keys, err) == 0 ? keys : NULL;
}

static struct str whole(const struct buf *b)
{
    return (struct str){b->p, b->n};
}

static void holds(struct signature_keys *keys, struct signature_message m)
{
    struct buf header, other;
    buf_init(&header, 1 << 16);
    buf_init(&other, 1 << 21);
    signature_add(&header, keys, &m);
    MUST(!header.failed && !memchr(header.p, '\n', header.n));
    MUST(signature_check(keys, &m, whole(&header), NOW) == NULL);
    m.timestamp++;
    MUST(signature_check(keys, &m, whole(&header), NOW) != NULL);
    m.timestamp = NOW - SIGNATURE_TOLERANCE_S - 1;
    MUST(signature_check(keys, &m, whole(&header), NOW) != NULL);
    m.timestamp = NOW;
    buf_addstr(&other, m.body);
    buf_addc(&other, 'x');
    if (m.body.n)
        other.p[m.body.n / 2] ^= 1;
    m.body = (struct str){other.p, other.n - (m.body.n > 0)};
    MUST(signature_check(keys, &m, whole(&header), NOW) != NULL);
    buf_release(&header);
    buf_release(&other);
}

/* secret_kept checks that no word which may be a secret is in the text of the error. */
static void secret_kept(const char *words, const struct error *err)
{
    char first[80];
    size_t n = strcspn(words, " \t\r\n");
    MUST(err->code == ERR_CONFIG && err->text[0]);
    if (n < 24 || n >= sizeof first)
        return;
    memcpy(first, words, n);
    first[n] = '\0';
    MUST(!strstr(err->text, first));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct signature_keys *good;
    struct error err = {0};
    char *text = fuzz_text(data, n);
    size_t words = strlen(text), header = words < n ? strlen(text + words + 1) : 0;
    size_t at = words + header + 2 < n ? words + header + 2 : n;
    struct signature_message m = {
        STR("01890a5d-ac96-774b-bcce-b302099a8057"), NOW, {text + at, n - at}};
    if (!good)
        good = keys_of(GOOD, &err);
    MUST(good);
    struct signature_keys *keys = keys_of(text, &err);
    if (keys)
        holds(keys, m);
    else
        secret_kept(text, &err);
    holds(good, m);
    /* A time is written in one way only. */
    int64_t time;
    char back[32];
    if (signature_timestamp((struct str){text, words}, &time)) {
        snprintf(back, sizeof back, "%lld", (long long)time);
        MUST(strcmp(back, text) == 0);
    }
    /* No input of an attacker, who does not know our secret, may verify. */
    MUST(signature_check(good, &m, (struct str){words < n ? text + words + 1 : text, header},
                         NOW) != NULL);
    signature_keys_free(keys);
    free(text);
    return 0;
}
