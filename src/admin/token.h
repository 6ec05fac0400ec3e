/* token.h: the tokens that the HTTP server of a relay requires. */
#ifndef ADMIN_TOKEN_H
#define ADMIN_TOKEN_H

#include <stdbool.h>

#include "base/err.h"
#include "base/str.h"

#define TOKEN_MIN 16
#define TOKEN_MAX 256
#define TOKENS_MAX 8

struct tokens;

/* token_load reads tokens from a file (separated by blanks or line ends; lines that start with #
 * are ignored) and from an environment variable (separated by blanks). Either may be NULL. Every
 * token is valid, so that one can be replaced without a gap. A token has TOKEN_MIN to TOKEN_MAX
 * printable ASCII characters and no blank. ERR_CONFIG says which token is wrong and why, and never
 * quotes one. The caller frees *ret. */
int token_load(const char *file, const char *variable, struct tokens **ret, struct error *err);
/* token_free wipes the tokens and frees them. NULL is fine. */
void token_free(struct tokens *t);

/* token_matches reports whether `given` is one of the tokens. The time it takes depends neither on
 * the tokens nor on how much of one was guessed. */
bool token_matches(const struct tokens *t, struct str given);
/* token_variable checks the name of an environment variable. The error does not quote it: it may be
 * a token given by mistake. */
int token_variable(const char *name, struct error *err);

#endif
