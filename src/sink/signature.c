#include "sink/signature.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/num.h"
#include "base/utf8.h"

#define SECRET_MIN 24
#define SECRET_MAX 64
#define SECRET_NEW 32
#define ED25519_KEY 32
#define FILE_MAX 16384
#define ED25519_SIGNATURE 64
#define MAC_SIZE 32
#define BASE64_TEXT (SIGNATURE_BYTES / 3 * 4)
#define MESSAGE_MAX (SIZE_MAX / 2)
#define STAMP 32
#define TIMESTAMP_MAX 15 /* digits */

/* A secret shared by both sides, or one half of a key pair. */
enum key_kind { KEY_SECRET, KEY_PRIVATE, KEY_PUBLIC };

/* (1) A secret has `mac`, the other kinds have `pair`; memory holds no other form of a key. */
struct key {
    enum key_kind kind;
    EVP_MAC_CTX *mac;
    EVP_PKEY *pair;
};

/* The keys in their configured order. */
struct signature_keys {
    enum signature_use use;
    struct key key[SIGNATURE_KEYS_MAX];
    size_t n;
};

/* The prefix of each kind of key, and a description of the rest. */
static const struct {
    struct str prefix;
    const char *what;
} kinds[] = {
    [KEY_SECRET] = {STR("whsec_"), "base64 of 24 to 64 bytes"},
    [KEY_PRIVATE] = {STR("whsk_"), "base64 of an ed25519 private key, alone or followed by the "
                                   "public key"},
    [KEY_PUBLIC] = {STR("whpk_"), "base64 of an ed25519 public key"},
};

#define KINDS (sizeof kinds / sizeof kinds[0])

void signature_keys_free(struct signature_keys *keys)
{
    if (!keys)
        return;
    for (size_t i = 0; i < keys->n; i++) {
        EVP_MAC_CTX_free(keys->key[i].mac);
        EVP_PKEY_free(keys->key[i].pair);
    }
    free(keys);
}

/* ---- keys from their bytes ---- */

static EVP_MAC_CTX *new_mac(const unsigned char *secret, size_t n)
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC *hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    EVP_MAC_CTX *ctx = hmac ? EVP_MAC_CTX_new(hmac) : NULL;
    EVP_MAC_free(hmac);
    if (ctx && EVP_MAC_init(ctx, secret, n, params) == 1)
        return ctx;
    EVP_MAC_CTX_free(ctx);
    return NULL;
}

static bool public_half(const EVP_PKEY *pair, unsigned char out[ED25519_KEY])
{
    size_t n = ED25519_KEY;
    return EVP_PKEY_get_raw_public_key(pair, out, &n) == 1 && n == ED25519_KEY;
}

/* Creates a private key. If a public key follows in the input, the two must match. */
static EVP_PKEY *new_private(const unsigned char *bytes, size_t n)
{
    unsigned char public[ED25519_KEY];
    EVP_PKEY *pair = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, bytes, ED25519_KEY);
    bool known = pair && public_half(pair, public);
    if (known && (n == ED25519_KEY || memcmp(public, bytes + ED25519_KEY, ED25519_KEY) == 0))
        return pair;
    EVP_PKEY_free(pair);
    return NULL;
}

/* Creates a key of k->kind from its bytes; returns false if they are invalid. */
static bool make_key(struct key *k, const unsigned char *bytes, size_t n)
{
    switch (k->kind) {
    case KEY_SECRET:
        if (n >= SECRET_MIN && n <= SECRET_MAX)
            k->mac = new_mac(bytes, n);
        break;
    case KEY_PRIVATE:
        if (n == ED25519_KEY || n == 2 * ED25519_KEY)
            k->pair = new_private(bytes, n);
        break;
    case KEY_PUBLIC:
        if (n == ED25519_KEY)
            k->pair = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, bytes, n);
        break;
    }
    return k->mac || k->pair;
}

/* ---- base64 (RFC 4648) ---- */

void signature_encode(struct buf *b, const void *p, size_t n)
{
    unsigned char text[BASE64_TEXT + 1];
    buf_add(b, text, (size_t)EVP_EncodeBlock(text, p, (int)n));
    OPENSSL_cleanse(text, sizeof text);
}

size_t signature_decode(struct str text, unsigned char to[SIGNATURE_BYTES])
{
    char padded[BASE64_TEXT], again[BASE64_TEXT] = "";
    struct buf encoded = {.p = again, .cap = sizeof again, .max = sizeof again};
    size_t length = (text.n + 3) / 4 * 4, n = 0;
    bool whole = text.n == length;
    bool fits = text.n > 0 && length <= sizeof padded;
    if (!fits || (!whole && memchr(text.p, '=', text.n)))
        return 0;
    memset(padded, '=', length);
    memcpy(padded, text.p, text.n);

    int most = (int)length / 4 * 3;
    if (EVP_DecodeBlock(to, (const unsigned char *)padded, (int)length) == most) {
        n = (size_t)most;
        for (size_t i = length; i > length - 2 && padded[i - 1] == '='; i--)
            n--;
        signature_encode(&encoded, to, n);
    }
    bool same = encoded.n == length && memcmp(padded, again, length) == 0;
    OPENSSL_cleanse(padded, sizeof padded);
    OPENSSL_cleanse(again, sizeof again);
    return same ? n : 0;
}

/* ---- reading keys ---- */

/* Creates a key from its base64; returns false if it is invalid. */
static bool decode_key(struct key *k, struct str text)
{
    unsigned char bytes[SIGNATURE_BYTES];
    bool good = make_key(k, bytes, signature_decode(text, bytes));
    OPENSSL_cleanse(bytes, sizeof bytes);
    return good;
}

/* Parses one word. Errors contain the number of the secret, but no part of it. */
static int add_key(struct signature_keys *keys, struct str word, struct error *err)
{
    size_t number = keys->n + 1, i = 0;
    if (keys->n == SIGNATURE_KEYS_MAX)
        return err_set(err, ERR_CONFIG, "more than %d secrets", SIGNATURE_KEYS_MAX);
    while (i < KINDS && !(word.n > kinds[i].prefix.n &&
                          memcmp(word.p, kinds[i].prefix.p, kinds[i].prefix.n) == 0))
        i++;
    if (i == KINDS)
        return err_set(
            err, ERR_CONFIG,
            "secret %zu does not start with whsec_ or whsk_; `outbox webhook secret` creates one",
            number);
    struct key k = {.kind = (enum key_kind)i};
    if (k.kind == KEY_PUBLIC && keys->use == SIGNATURE_SIGN)
        return err_set(
            err, ERR_CONFIG,
            "secret %zu is a public key, which cannot sign; a private key starts with whsk_",
            number);

    struct str prefix = kinds[k.kind].prefix;
    if (!decode_key(&k, (struct str){word.p + prefix.n, word.n - prefix.n}))
        return err_set(err, ERR_CONFIG, "secret %zu is not %s and %s", number, prefix.p,
                       kinds[k.kind].what);
    keys->key[keys->n++] = k;
    return 0;
}

/* Parses the words of a text. A word starting with # begins a comment up to the end of the line. */
static int add_words(struct signature_keys *keys, struct str text, struct error *err)
{
    const char *p = text.p, *end = text.p + text.n;
    while (p < end) {
        const char *from = p;
        if (*from == '#') {
            const char *eol = memchr(p, '\n', (size_t)(end - p));
            p = eol ? eol : end;
            continue;
        }
        while (p < end && !char_is_space(*p))
            p++;
        struct str word = {from, (size_t)(p - from)};
        if (word.n > 0 && add_key(keys, word, err) != 0)
            return -1;
        if (p < end)
            p++; /* skip the blank */
    }
    return 0;
}

static int add_file(struct signature_keys *keys, const char *path, struct error *err)
{
    char text[FILE_MAX];
    ssize_t n = fd_read_file(path, text, sizeof text);
    if (n < 0)
        return err_errno(err, ERR_CONFIG, errno, "%s: could not read the secrets", path);

    int r;
    if (n == sizeof text)
        r = err_set(err, ERR_CONFIG, "over 16 KiB");
    else
        r = add_words(keys, (struct str){text, (size_t)n}, err);
    OPENSSL_cleanse(text, sizeof text);
    if (r != 0)
        return err_prefix(err, "%s", path);
    return 0;
}

int signature_keys_load(const struct signature_source *from, struct signature_keys **ret,
                        struct error *err)
{
    struct signature_keys *keys = calloc(1, sizeof *keys);
    if (!keys)
        return err_nomem(err);
    keys->use = from->use;
    int rc = 0;
    if (from->file)
        rc = add_file(keys, from->file, err);
    if (rc == 0 && from->variable) {
        const char *value = getenv(from->variable);
        if (!value || !*value)
            rc = err_set(err, ERR_CONFIG, "the environment variable %s is not set", from->variable);
        else if (add_words(keys, str_of(value), err) != 0)
            rc = err_prefix(err, "%s", from->variable);
    }
    if (rc == 0 && keys->n == 0)
        rc = err_set(err, ERR_CONFIG, "%s: contains no secret",
                     from->file ? from->file : from->variable);
    if (rc != 0) {
        signature_keys_free(keys);
        return -1;
    }
    *ret = keys;
    return 0;
}

/* ---- new keys ---- */

static int add_random(unsigned char *p, size_t n, struct error *err)
{
    if (getrandom(p, n, 0) == (ssize_t)n)
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "could not get random bytes from the kernel");
}

static void write_key(struct buf *b, enum key_kind kind, const unsigned char *p, size_t n)
{
    buf_addstr(b, kinds[kind].prefix);
    signature_encode(b, p, n);
}

int signature_new_secret(struct buf *b, struct error *err)
{
    unsigned char bytes[SECRET_NEW];
    if (add_random(bytes, sizeof bytes, err) != 0)
        return -1;
    write_key(b, KEY_SECRET, bytes, sizeof bytes);
    OPENSSL_cleanse(bytes, sizeof bytes);
    if (b->failed)
        return err_nomem(err);
    return 0;
}

int signature_new_pair(struct buf *b, struct buf *public, struct error *err)
{
    unsigned char bytes[2 * ED25519_KEY];
    if (add_random(bytes, ED25519_KEY, err) != 0)
        return -1;
    EVP_PKEY *pair = new_private(bytes, ED25519_KEY);
    bool good = pair && public_half(pair, bytes + ED25519_KEY);
    EVP_PKEY_free(pair);
    if (good) {
        write_key(b, KEY_PRIVATE, bytes, sizeof bytes);
        write_key(public, KEY_PUBLIC, bytes + ED25519_KEY, ED25519_KEY);
    }
    OPENSSL_cleanse(bytes, sizeof bytes);

    if (!good)
        return err_set(err, ERR_UNAVAILABLE, "libcrypto has no ed25519");
    if (b->failed || public->failed)
        return err_nomem(err);
    return 0;
}

int signature_public(struct buf *b, const struct signature_keys *keys, struct error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < keys->n; i++) {
        const struct key *k = &keys->key[i];
        unsigned char bytes[ED25519_KEY];
        if (k->kind == KEY_SECRET || !public_half(k->pair, bytes))
            continue;
        write_key(b, KEY_PUBLIC, bytes, sizeof bytes);
        buf_addc(b, '\n');
        n++;
    }
    if (n == 0)
        return err_set(err, ERR_CONFIG,
                       "no whsk_ key found; `outbox webhook secret --asymmetric` creates one");
    if (b->failed)
        return err_nomem(err);
    return 0;
}

/* ---- signing ---- */

/* Formats the text between the id and the body: the timestamp and two dots. */
static struct str stamp_of(const struct signature_message *m, char out[STAMP])
{
    int n = snprintf(out, STAMP, ".%lld.", (long long)m->timestamp);
    return (struct str){out, (size_t)n};
}

/* Signs with a secret. The context keeps its key and is reused. */
static bool mac_of(EVP_MAC_CTX *ctx, const struct signature_message *m, unsigned char out[MAC_SIZE])
{
    char stamp[STAMP];
    size_t n;
    const struct str parts[] = {m->id, stamp_of(m, stamp), m->body};
    bool good = EVP_MAC_init(ctx, NULL, 0, NULL) == 1;
    for (size_t i = 0; good && i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i].n > 0)
            good = EVP_MAC_update(ctx, (const unsigned char *)parts[i].p, parts[i].n) == 1;
    good = good && EVP_MAC_final(ctx, out, &n, MAC_SIZE) == 1;
    return good && n == MAC_SIZE;
}

/* Joins the signed text on the first call: ed25519 makes two passes over the text, so it cannot be
 * streamed. p == NULL: out of memory. */
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

void signature_add(struct buf *b, struct signature_keys *keys, const struct signature_message *m)
{
    struct buf message;
    buf_init(&message, MESSAGE_MAX);
    for (size_t i = 0; i < keys->n; i++) {
        const struct key *k = &keys->key[i];
        unsigned char signature[ED25519_SIGNATURE];
        bool secret = k->kind == KEY_SECRET, done;
        if (secret) {
            done = mac_of(k->mac, m, signature);
        } else {
            struct str text = whole(&message, m);
            done = text.p && ed25519_sign(k->pair, text, signature);
        }
        if (!done) {
            b->failed = true;
            break;
        }
        if (i > 0)
            buf_addc(b, ' ');
        buf_adds(b, secret ? "v1," : "v1a,");
        signature_encode(b, signature, secret ? MAC_SIZE : ED25519_SIGNATURE);
    }
    buf_release(&message);
}

/* ---- verifying ---- */

/* A signature from a header. (1) kind is KEY_SECRET or KEY_PUBLIC. */
struct given {
    enum key_kind kind;
    unsigned char bytes[SIGNATURE_BYTES];
};

/* The signatures in a header that one of our keys may have created. */
struct given_list {
    struct given given[SIGNATURES_MAX];
    size_t n;
};

/* Parses the signatures of a header, which are separated by blanks, and keeps those with a known
 * version and the right size. */
static void read_signatures(struct str header, struct given_list *ret)
{
    ret->n = 0;
    while (header.n > 0 && ret->n < SIGNATURES_MAX) {
        const char *blank = memchr(header.p, ' ', header.n);
        struct str one = header;
        if (blank)
            one.n = (size_t)(blank - header.p);
        size_t past = blank ? one.n + 1 : one.n;
        header = (struct str){header.p + past, header.n - past};

        const char *comma = memchr(one.p, ',', one.n);
        if (!comma)
            continue;
        struct str version = {one.p, (size_t)(comma - one.p)};
        bool secret = str_is(version, "v1");
        if (!secret && !str_is(version, "v1a"))
            continue;
        struct given *g = &ret->given[ret->n];
        g->kind = secret ? KEY_SECRET : KEY_PUBLIC;
        struct str text = {comma + 1, one.n - version.n - 1};
        if (signature_decode(text, g->bytes) == (secret ? MAC_SIZE : ED25519_SIGNATURE))
            ret->n++;
    }
}

/* Returns whether one of the signatures was created with one of the keys. MACs are compared in
 * constant time. */
static bool made_by_any(const struct signature_keys *keys, const struct signature_message *m,
                        const struct given_list *l)
{
    bool found = false;
    struct buf message;
    buf_init(&message, MESSAGE_MAX);
    for (size_t i = 0; i < keys->n && !found; i++) {
        const struct key *k = &keys->key[i];
        bool secret = k->kind == KEY_SECRET;
        unsigned char mac[MAC_SIZE];
        struct str text = {NULL, 0};
        if (secret && !mac_of(k->mac, m, mac))
            continue;
        if (!secret)
            text = whole(&message, m);
        if (!secret && !text.p)
            continue;

        for (size_t at = 0; at < l->n && !found; at++) {
            const struct given *g = &l->given[at];
            if (secret && g->kind == KEY_SECRET)
                found = CRYPTO_memcmp(mac, g->bytes, MAC_SIZE) == 0;
            if (!secret && g->kind == KEY_PUBLIC)
                found = ed25519_verify(k->pair, text, g->bytes);
        }
    }
    buf_release(&message);
    return found;
}

const char *signature_check(struct signature_keys *keys, const struct signature_message *m,
                            struct str header, int64_t now_s)
{
    if (!m->id.n)
        return "no webhook-id";
    /* A signed text such as x.1700000000.1700000001.5 is ambiguous: it could be the body
     * 1700000001.5 with the id x, or the body 5 with the id x.1700000000. */
    if (memchr(m->id.p, '.', m->id.n))
        return "webhook-id contains a dot";
    if (!header.n)
        return "no webhook-signature";
    if (now_s && m->timestamp < now_s - SIGNATURE_TOLERANCE_S)
        return "webhook-timestamp is more than 5 minutes old";
    if (now_s && m->timestamp > now_s + SIGNATURE_TOLERANCE_S)
        return "webhook-timestamp is more than 5 minutes in the future";

    struct given_list given;
    read_signatures(header, &given);
    if (!made_by_any(keys, m, &given))
        return "no signature was created with one of our secrets";
    return NULL;
}

bool signature_timestamp(struct str text, int64_t *ret)
{
    int64_t n = 0;
    bool sized = text.n > 0 && text.n <= TIMESTAMP_MAX;
    if (!sized || text.p[0] == '0')
        return false;
    for (size_t i = 0; i < text.n; i++) {
        if (!char_is_digit(text.p[i]) || !num_push(&n, text.p[i] - '0'))
            return false;
    }
    *ret = n;
    return true;
}
