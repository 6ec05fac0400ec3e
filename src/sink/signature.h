/* signature.h: Standard Webhooks signatures of id.timestamp.body: "v1," and the base64 of an
 * HMAC-SHA256, or "v1a," and the base64 of an ed25519 signature.
 *
 * A secret is whsec_ and the base64 of 24 to 64 bytes. A key pair consists of a private key, whsk_,
 * and a public key, whpk_, each with the base64 of 32 bytes. A private key's base64 may include its
 * public key, as other programs write it, and as we do. No error repeats a key. */
#ifndef SINK_SIGNATURE_H
#define SINK_SIGNATURE_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define SIGNATURE_KEYS_MAX 8
#define SIGNATURE_TOLERANCE_S 300
#define SIGNATURES_MAX 16 /* signatures of a header that are checked */

struct signature_keys;

/* The purpose of loaded keys. A public key cannot sign. */
enum signature_use { SIGNATURE_SIGN, SIGNATURE_VERIFY };

/* Sources of keys; either may be NULL. Signing uses secrets and private keys; verification also
 * uses public keys. */
struct signature_source {
    const char *file, *variable;
    enum signature_use use;
};

/* The signed parts of a message. */
struct signature_message {
    struct str id;
    int64_t timestamp; /* seconds since 1970 */
    struct str body;
};

/* signature_keys_load reads keys from a file (one per line; blank lines and lines starting with #
 * are ignored) and from an environment variable (separated by blanks). The first key is the current
 * one; the others are being rotated in or out: all keys sign, and a signature by any of them is
 * valid. The caller frees *ret. Fails with ERR_CONFIG, naming the key and the problem, or with
 * ERR_NOMEM. */
int signature_keys_load(const struct signature_source *from, struct signature_keys **ret,
                        struct error *err);
void signature_keys_free(struct signature_keys *keys);

/* signature_add appends "v1,... v1a,...", one signature per key. It sets b->failed on failure. */
void signature_add(struct buf *b, struct signature_keys *keys, const struct signature_message *m);

/* signature_check returns why a message is not authentic; NULL if it is. header is the value of
 * webhook-signature. now_s is the time in seconds; 0 accepts any timestamp. */
const char *signature_check(struct signature_keys *keys, const struct signature_message *m,
                            struct str header, int64_t now_s);

/* signature_timestamp parses a webhook-timestamp, which consists of digits; returns false if it is
 * not a valid time. */
bool signature_timestamp(struct str text, int64_t *ret);

/* signature_new_secret appends a new secret. */
int signature_new_secret(struct buf *b, struct error *err);
/* signature_new_pair appends a new private key to b and its public key to `public`. */
int signature_new_pair(struct buf *b, struct buf *public, struct error *err);
/* signature_public appends the public keys, one per line; fails with ERR_CONFIG if there are
 * none. */
int signature_public(struct buf *b, const struct signature_keys *keys, struct error *err);

/* signature_encode appends the base64 (RFC 4648, with padding) of n bytes, at most SIGNATURE_BYTES.
 * signature_decode reads it, even without padding, and returns the number of bytes; 0 if there are
 * too many, or if no encoder produces such a text. */
#define SIGNATURE_BYTES 72
void signature_encode(struct buf *b, const void *p, size_t n);
size_t signature_decode(struct str text, unsigned char to[SIGNATURE_BYTES]);

#endif
