#include "sink/http_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/text.h"
#include "base/utf8.h"

#define SOURCE_MAX 1024

const char *const http_mode_names[] = {
    [HTTP_BINARY] = "binary", [HTTP_STRUCTURED] = "structured", NULL};
const char *const http_client_errors_names[] = {"retry", "reject", NULL};
const char *const http_version_names[] = {
    [HTTP_AUTO] = "auto", [HTTP_1_1] = "1.1", [HTTP_2] = "2", NULL};

void http_options_release(struct http_options *o)
{
    free(o->secret_file);
    free(o->secret_env);
    free(o->header_file);
    free(o->ca_file);
    free(o->proxy);
    free(o->source);
    *o = (struct http_options){0};
}

int http_options_copy(const struct http_options *from, struct http_options *ret, struct error *err)
{
    const char *const texts[] = {from->secret_file, from->secret_env, from->header_file,
                                 from->ca_file,     from->proxy,      from->source};
    char **const fields[] = {&ret->secret_file, &ret->secret_env, &ret->header_file,
                             &ret->ca_file,     &ret->proxy,      &ret->source};
    const size_t n = sizeof fields / sizeof fields[0];
    *ret = *from;
    for (size_t i = 0; i < n; i++)
        *fields[i] = NULL; /* owned by `from` */

    for (size_t i = 0; i < n; i++) {
        if (option_copy_maybe(fields[i], texts[i], err) != 0)
            return -1;
    }
    return 0;
}

static bool begins_with_any(const char *s, const char *const *prefixes)
{
    for (; *prefixes; prefixes++) {
        if (strncmp(s, *prefixes, strlen(*prefixes)) == 0)
            return true;
    }
    return false;
}

/* Does not repeat the value, which may be the secret itself instead of a variable's name. */
int http_options_secret_env(void *field, const char *value, const struct option_def *o,
                            struct error *err)
{
    static const char *const keys[] = {"whsec_", "whsk_", "whpk_", NULL};
    if (!text_is_variable(str_of(value)) || begins_with_any(value, keys))
        return err_set(err, ERR_CONFIG,
                       "expected the name of an environment variable, not a secret");
    return option_copy(field, value, o, err);
}

int http_options_proxy(void *field, const char *value, const struct option_def *o,
                       struct error *err)
{
    static const char *const schemes[] = {"http://", "https://", "socks5://", "socks5h://", NULL};
    bool known = strcmp(value, "env") == 0 || begins_with_any(value, schemes);
    if (!known)
        return err_set(err, ERR_CONFIG,
                       "expected http://HOST:PORT, https://, socks5:// or socks5h://, or env");
    return option_copy(field, value, o, err);
}

int http_options_source(void *field, const char *value, const struct option_def *o,
                        struct error *err)
{
    size_t n = strlen(value);
    for (size_t i = 0; i < n; i++) {
        bool allowed = char_is_visible(value[i]) && !strchr("\"<>\\^`{|}", value[i]);
        if (!allowed)
            return err_set(err, ERR_CONFIG,
                           "character %zu is not allowed in a URI; percent-encode it", i + 1);
    }
    if (n == 0 || n > SOURCE_MAX)
        return err_set(err, ERR_CONFIG, "the source must be a URI of 1 to %d bytes", SOURCE_MAX);
    return option_copy(field, value, o, err);
}

int http_options_allow(void *field, const char *value, const struct option_def *o,
                       struct error *err)
{
    static const char between[] = ", \t";
    struct http_options *options = field;
    struct ipnet nets[HTTP_ALLOW_MAX] = {0};
    size_t n = 0;
    (void)o;
    for (value += strspn(value, between); *value; value += strspn(value, between)) {
        char one[64];
        size_t length = strcspn(value, between);
        if (n == HTTP_ALLOW_MAX)
            return err_set(err, ERR_CONFIG, "more than %d networks", HTTP_ALLOW_MAX);
        snprintf(one, sizeof one, "%.*s", (int)min_size(length, sizeof one - 1), value);
        if (ipnet_parse(one, &nets[n], err) != 0)
            return -1;
        n++;
        value += length;
    }
    memcpy(options->allow, nets, n * sizeof nets[0]);
    options->n_allow = n;
    return 0;
}
