/* signature_keys.c: keys of signatures: read from a file or a variable, made from randomness. */
#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/params.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/base64.h"
#include "base/char.h"
#include "base/small_file.h"
#include "sink/signature_impl.h"

#define SECRET_MIN 24
#define SECRET_MAX 64
#define SECRET_NEW 32
#define ED25519_KEY 32
#define FILE_MAX 16384

/* How a key of each kind is written, and what follows the prefix. */
static const struct {
    struct str prefix;
    const char *what;
} kinds[] = {
    [KEY_SECRET] = {STR("whsec_"), "base64 of 24 to 64 bytes"},
    [KEY_PRIVATE] = {STR("whsk_"), "base64 of an ed25519 key, alone or followed by the public one"},
    [KEY_PUBLIC] = {STR("whpk_"), "base64 of an ed25519 key"},
};

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

static EVP_MAC_CTX *new_hmac(void)
{
    EVP_MAC *hmac = EVP_MAC_fetch(NULL, "HMAC", NULL);
    if (!hmac)
        return NULL;
    EVP_MAC_CTX *ctx = EVP_MAC_CTX_new(hmac);
    EVP_MAC_free(hmac);
    return ctx;
}

static EVP_MAC_CTX *new_mac(const unsigned char *secret, size_t n)
{
    char digest[] = "SHA256";
    OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                           OSSL_PARAM_construct_end()};
    EVP_MAC_CTX *ctx = new_hmac();
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

/* belongs says whether the public key that follows a private one is its own; if none follows, it
 * is. */
static bool belongs(const EVP_PKEY *pair, const unsigned char *bytes, size_t n)
{
    unsigned char public[ED25519_KEY];
    if (!public_half(pair, public))
        return false;
    return n == ED25519_KEY || memcmp(public, bytes + ED25519_KEY, ED25519_KEY) == 0;
}

static EVP_PKEY *new_private(const unsigned char *bytes, size_t n)
{
    EVP_PKEY *pair = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, bytes, ED25519_KEY);
    if (pair && belongs(pair, bytes, n))
        return pair;
    EVP_PKEY_free(pair);
    return NULL;
}

static bool has_size(enum key_kind kind, size_t n)
{
    switch (kind) {
    case KEY_SECRET: return n >= SECRET_MIN && n <= SECRET_MAX;
    case KEY_PRIVATE: return n == ED25519_KEY || n == 2 * ED25519_KEY;
    case KEY_PUBLIC: return n == ED25519_KEY;
    }
    return false;
}

/* make_key makes a key of k->kind from its bytes; false if they are not one. */
static bool make_key(struct key *k, const unsigned char *bytes, size_t n)
{
    if (!has_size(k->kind, n))
        return false;
    switch (k->kind) {
    case KEY_SECRET: k->mac = new_mac(bytes, n); break;
    case KEY_PRIVATE: k->pair = new_private(bytes, n); break;
    case KEY_PUBLIC: k->pair = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, bytes, n); break;
    }
    return k->mac || k->pair;
}

/* ---- reading keys ---- */

static bool begins_with(struct str s, struct str prefix)
{
    return s.n > prefix.n && memcmp(s.p, prefix.p, prefix.n) == 0;
}

static bool kind_of(struct str word, enum key_kind *ret)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!begins_with(word, kinds[i].prefix))
            continue;
        *ret = (enum key_kind)i;
        return true;
    }
    return false;
}

/* decode_key makes a key from its base64; false if it is not one. */
static bool decode_key(struct key *k, struct str text)
{
    char bytes[SECRET_MAX + 4];
    struct buf decoded = {.p = bytes, .cap = sizeof bytes, .max = sizeof bytes};
    bool good = base64_decode(&decoded, text) && !decoded.failed;
    if (good)
        good = make_key(k, (const unsigned char *)bytes, decoded.n);
    OPENSSL_cleanse(bytes, sizeof bytes);
    return good;
}

/* add_key reads one word. Its errors give the number of the secret, and repeat nothing of it. */
static int add_key(struct signature_keys *keys, struct str word, struct error *err)
{
    struct key k = {.mac = NULL};
    size_t number = keys->n + 1;
    if (keys->n == SIGNATURE_KEYS_MAX)
        return err_set(err, ERR_CONFIG, "more than %d secrets", SIGNATURE_KEYS_MAX);
    if (!kind_of(word, &k.kind))
        return err_set(
            err, ERR_CONFIG,
            "secret %zu does not start with whsec_ or whsk_; outbox webhook secret makes one",
            number);
    if (k.kind == KEY_PUBLIC && keys->use == SIGNATURE_SIGN)
        return err_set(
            err, ERR_CONFIG,
            "secret %zu is a public key, which cannot sign; the private one begins with whsk_",
            number);

    struct str prefix = kinds[k.kind].prefix;
    if (!decode_key(&k, (struct str){word.p + prefix.n, word.n - prefix.n}))
        return err_set(err, ERR_CONFIG, "secret %zu is not %s and %s", number, prefix.p,
                       kinds[k.kind].what);
    keys->key[keys->n++] = k;
    return 0;
}

/* end_of_word and end_of_line find where what begins at p ends. */
static const char *end_of_word(const char *p, const char *end)
{
    while (p < end && !char_is_space(*p))
        p++;
    return p;
}

static const char *end_of_line(const char *p, const char *end)
{
    const char *eol = memchr(p, '\n', (size_t)(end - p));
    if (!eol)
        return end;
    return eol;
}

/* add_words reads the words of a text. A word that begins with # hides the rest of its line. */
static int add_words(struct signature_keys *keys, struct str text, struct error *err)
{
    const char *p = text.p, *end = text.p + text.n;
    while (p < end) {
        const char *from = p;
        if (*from == '#') {
            p = end_of_line(p, end);
            continue;
        }
        p = end_of_word(p, end);
        struct str word = {from, (size_t)(p - from)};
        if (word.n > 0 && add_key(keys, word, err) != 0)
            return -1;
        if (p < end)
            p++; /* past the blank */
    }
    return 0;
}

static int add_file(struct signature_keys *keys, const char *path, struct error *err)
{
    char text[FILE_MAX];
    ssize_t n = small_file_read(path, text, sizeof text);
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

static int add_variable(struct signature_keys *keys, const char *name, struct error *err)
{
    const char *value = getenv(name);
    if (!value || !*value)
        return err_set(err, ERR_CONFIG, "the environment variable %s is not set", name);
    if (add_words(keys, str_of(value), err) != 0)
        return err_prefix(err, "%s", name);
    return 0;
}

static int add_all(struct signature_keys *keys, const struct signature_source *from,
                   struct error *err)
{
    if (from->file && add_file(keys, from->file, err) != 0)
        return -1;
    if (from->variable && add_variable(keys, from->variable, err) != 0)
        return -1;
    if (keys->n > 0)
        return 0;
    const char *where = from->file ? from->file : from->variable;
    return err_set(err, ERR_CONFIG, "%s: no secret in it", where);
}

int signature_keys_load(const struct signature_source *from, struct signature_keys **ret,
                        struct error *err)
{
    struct signature_keys *keys = calloc(1, sizeof *keys);
    if (!keys)
        return err_nomem(err);
    keys->use = from->use;
    if (add_all(keys, from, err) != 0) {
        signature_keys_free(keys);
        return -1;
    }
    *ret = keys;
    return 0;
}

/* ---- new keys ---- */

static int randomness(unsigned char *p, size_t n, struct error *err)
{
    if (getrandom(p, n, 0) == (ssize_t)n)
        return 0;
    return err_errno(err, ERR_UNAVAILABLE, errno, "the kernel provides no randomness");
}

static void write_key(struct buf *b, enum key_kind kind, const unsigned char *p, size_t n)
{
    buf_addstr(b, kinds[kind].prefix);
    base64_add(b, p, n);
}

int signature_new_secret(struct buf *b, struct error *err)
{
    unsigned char bytes[SECRET_NEW];
    if (randomness(bytes, sizeof bytes, err) != 0)
        return -1;
    write_key(b, KEY_SECRET, bytes, sizeof bytes);
    OPENSSL_cleanse(bytes, sizeof bytes);
    if (b->failed)
        return err_nomem(err);
    return 0;
}

/* add_public_half puts the public key after the private one at bytes. */
static bool add_public_half(unsigned char bytes[2 * ED25519_KEY])
{
    EVP_PKEY *pair = new_private(bytes, ED25519_KEY);
    bool good = pair && public_half(pair, bytes + ED25519_KEY);
    EVP_PKEY_free(pair);
    return good;
}

int signature_new_pair(struct buf *b, struct buf *public, struct error *err)
{
    unsigned char bytes[2 * ED25519_KEY];
    if (randomness(bytes, ED25519_KEY, err) != 0)
        return -1;
    bool good = add_public_half(bytes);
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
                       "there is no whsk_ key; outbox webhook secret --asymmetric makes one");
    if (b->failed)
        return err_nomem(err);
    return 0;
}
