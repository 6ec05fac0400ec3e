#include "sink/signature.h"

#include <openssl/crypto.h>
#include <stdio.h>

#include "base/base64.h"
#include "sink/signature_impl.h"

#define ED25519_SIGNATURE 64
#define MAC_SIZE 32
#define MESSAGE_MAX (SIZE_MAX / 2)
#define STAMP 32
#define TIMESTAMP_MAX 15 /* digits */

/* ---- signing ---- */

/* stamp_of writes what is between the id and the body: the timestamp and two dots. */
static struct str stamp_of(const struct signature_message *m, char out[STAMP])
{
    int n = snprintf(out, STAMP, ".%lld.", (long long)m->timestamp);
    return (struct str){out, (size_t)n};
}

static bool update(EVP_MAC_CTX *ctx, struct str s)
{
    if (s.n == 0)
        return true;
    return EVP_MAC_update(ctx, (const unsigned char *)s.p, s.n) == 1;
}

/* mac_of signs with a secret. The context keeps its key, and is used again and again. */
static bool mac_of(EVP_MAC_CTX *ctx, const struct signature_message *m, unsigned char out[MAC_SIZE])
{
    char stamp[STAMP];
    size_t n;
    bool good = EVP_MAC_init(ctx, NULL, 0, NULL) == 1;
    good = good && update(ctx, m->id);
    good = good && update(ctx, stamp_of(m, stamp));
    good = good && update(ctx, m->body);
    good = good && EVP_MAC_final(ctx, out, &n, MAC_SIZE) == 1;
    return good && n == MAC_SIZE;
}

/* whole puts the signed text into one piece, at the first call: ed25519 goes over it twice, so it
 * cannot take it in parts. p == NULL: out of memory. */
static struct str whole(struct buf *b, const struct signature_message *m)
{
    char stamp[STAMP];
    if (b->n == 0) {
        buf_expect(b, m->id.n + STAMP + m->body.n);
        buf_addstr(b, m->id);
        buf_addstr(b, stamp_of(m, stamp));
        buf_addstr(b, m->body);
    }
    if (b->failed)
        return (struct str){NULL, 0};
    return (struct str){b->p, b->n};
}

static bool ed25519_sign(EVP_PKEY *pair, struct str message, unsigned char out[ED25519_SIGNATURE])
{
    const unsigned char *bytes = (const unsigned char *)message.p;
    size_t n = ED25519_SIGNATURE;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool done = ctx && EVP_DigestSignInit(ctx, NULL, NULL, NULL, pair) == 1;
    done = done && EVP_DigestSign(ctx, out, &n, bytes, message.n) == 1;
    EVP_MD_CTX_free(ctx);
    return done && n == ED25519_SIGNATURE;
}

static bool ed25519_verify(EVP_PKEY *pair, struct str message,
                           const unsigned char signature[ED25519_SIGNATURE])
{
    const unsigned char *bytes = (const unsigned char *)message.p;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool good = ctx && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, pair) == 1;
    good = good && EVP_DigestVerify(ctx, signature, ED25519_SIGNATURE, bytes, message.n) == 1;
    EVP_MD_CTX_free(ctx);
    return good;
}

static void add_mac(struct buf *b, const struct key *k, const struct signature_message *m)
{
    unsigned char mac[MAC_SIZE];
    if (!mac_of(k->mac, m, mac)) {
        b->failed = true;
        return;
    }
    buf_adds(b, "v1,");
    base64_add(b, mac, sizeof mac);
}

static void add_ed25519(struct buf *b, const struct key *k, struct str message)
{
    unsigned char signature[ED25519_SIGNATURE];
    if (!message.p || !ed25519_sign(k->pair, message, signature)) {
        b->failed = true;
        return;
    }
    buf_adds(b, "v1a,");
    base64_add(b, signature, sizeof signature);
}

void signature_add(struct buf *b, struct signature_keys *keys, const struct signature_message *m)
{
    struct buf message;
    buf_init(&message, MESSAGE_MAX);
    for (size_t i = 0; i < keys->n; i++) {
        const struct key *k = &keys->key[i];
        if (i)
            buf_addc(b, ' ');
        if (k->kind == KEY_SECRET)
            add_mac(b, k, m);
        else
            add_ed25519(b, k, whole(&message, m));
    }
    buf_release(&message);
}

/* ---- verifying ---- */

/* A signature from a header. (1) kind is KEY_SECRET or KEY_PUBLIC. */
struct given {
    enum key_kind kind;
    char bytes[ED25519_SIGNATURE + 4];
};

static bool decode(struct given *g, struct str text, size_t size)
{
    struct buf decoded = {.p = g->bytes, .cap = sizeof g->bytes, .max = sizeof g->bytes};
    return base64_decode(&decoded, text) && !decoded.failed && decoded.n == size;
}

/* read_given reads one signature; false if none of our keys can have made it. */
static bool read_given(struct str one, struct given *ret)
{
    const char *comma = memchr(one.p, ',', one.n);
    if (!comma)
        return false;
    struct str version = {one.p, (size_t)(comma - one.p)};
    struct str text = {comma + 1, one.n - version.n - 1};

    if (str_is(version, "v1")) {
        ret->kind = KEY_SECRET;
        return decode(ret, text, MAC_SIZE);
    }
    if (str_is(version, "v1a")) {
        ret->kind = KEY_PUBLIC;
        return decode(ret, text, ED25519_SIGNATURE);
    }
    return false;
}

/* next_word takes the next word off a header; false at its end. */
static bool next_word(struct str *header, struct str *ret)
{
    if (header->n == 0)
        return false;
    const char *blank = memchr(header->p, ' ', header->n);
    *ret = *header;
    size_t past = header->n;
    if (blank) {
        ret->n = (size_t)(blank - header->p);
        past = ret->n + 1;
    }
    header->p += past;
    header->n -= past;
    return true;
}

/* The signatures in a header that one of our keys can have made. */
struct given_list {
    struct given given[SIGNATURES_MAX];
    size_t n;
};

static void read_header(struct str header, struct given_list *ret)
{
    struct str one;
    ret->n = 0;
    while (ret->n < SIGNATURES_MAX && next_word(&header, &one)) {
        if (read_given(one, &ret->given[ret->n]))
            ret->n++;
    }
}

/* made_by_secret compares in constant time. */
static bool made_by_secret(const struct key *k, const struct signature_message *m,
                           const struct given_list *l)
{
    unsigned char mac[MAC_SIZE];
    if (!mac_of(k->mac, m, mac))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        const struct given *g = &l->given[i];
        if (g->kind == KEY_SECRET && CRYPTO_memcmp(mac, g->bytes, MAC_SIZE) == 0)
            return true;
    }
    return false;
}

static bool made_by_pair(const struct key *k, struct str message, const struct given_list *l)
{
    if (!message.p)
        return false;
    for (size_t i = 0; i < l->n; i++) {
        const struct given *g = &l->given[i];
        const unsigned char *bytes = (const unsigned char *)g->bytes;
        if (g->kind == KEY_PUBLIC && ed25519_verify(k->pair, message, bytes))
            return true;
    }
    return false;
}

static bool made_by_any(const struct signature_keys *keys, const struct signature_message *m,
                        const struct given_list *l)
{
    bool found = false;
    struct buf message;
    buf_init(&message, MESSAGE_MAX);
    for (size_t i = 0; i < keys->n && !found; i++) {
        const struct key *k = &keys->key[i];
        if (k->kind == KEY_SECRET)
            found = made_by_secret(k, m, l);
        else
            found = made_by_pair(k, whole(&message, m), l);
    }
    buf_release(&message);
    return found;
}

static const char *check_time(int64_t timestamp, int64_t now_s)
{
    if (timestamp < now_s - SIGNATURE_TOLERANCE_S)
        return "too old: webhook-timestamp is over 5 minutes ago";
    if (timestamp > now_s + SIGNATURE_TOLERANCE_S)
        return "webhook-timestamp is over 5 minutes ahead";
    return NULL;
}

const char *signature_check(struct signature_keys *keys, const struct signature_message *m,
                            struct str header, int64_t now_s)
{
    struct given_list given;
    const char *why = NULL;
    if (!m->id.n)
        return "no webhook-id";
    /* What is signed, x.1700000000.1700000001.5, could be the body 1700000001.5 with the id x, or
     * the body 5 with the id x.1700000000. */
    if (memchr(m->id.p, '.', m->id.n))
        return "webhook-id contains a dot";
    if (!header.n)
        return "no webhook-signature";
    if (now_s)
        why = check_time(m->timestamp, now_s);
    if (why)
        return why;

    read_header(header, &given);
    if (!made_by_any(keys, m, &given))
        return "no signature in it was made with one of our secrets";
    return NULL;
}

bool signature_timestamp(struct str text, int64_t *ret)
{
    int64_t n = 0;
    bool sized = text.n > 0 && text.n <= TIMESTAMP_MAX;
    if (!sized || text.p[0] == '0')
        return false;
    for (size_t i = 0; i < text.n; i++) {
        if (text.p[i] < '0' || text.p[i] > '9')
            return false;
        n = n * 10 + (text.p[i] - '0');
    }
    *ret = n;
    return true;
}
