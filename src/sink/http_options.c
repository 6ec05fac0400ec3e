#include "sink/http_options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define RATE_MAX 1000000
#define TIME_MAX_MS (24 * INT64_C(3600000))
#define SOURCE_MAX 1024

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

static int set_string(char **field, const char *value, struct error *err)
{
    char *copy = strdup(value);
    if (!copy) return err_nomem(err);
    free(*field);
    *field = copy;
    return 0;
}

int http_options_copy(const struct http_options *from, struct http_options *ret, struct error *err)
{
    const char *const texts[] = {from->secret_file, from->secret_env, from->header_file,
                                 from->ca_file,     from->proxy,      from->source};
    char **const fields[] = {&ret->secret_file, &ret->secret_env, &ret->header_file,
                             &ret->ca_file,     &ret->proxy,      &ret->source};
    int r = 0;
    *ret = *from;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) *fields[i] = NULL;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && r == 0; i++)
        if (texts[i]) r = set_string(fields[i], texts[i], err);
    return r;
}

static int set_file(char **field, const char *value, struct error *err)
{
    if (!*value) return err_set(err, ERR_CONFIG, "the file's name is empty");
    return set_string(field, value, err);
}

int http_options_secret_file(struct http_options *o, const char *value, struct error *err)
{
    return set_file(&o->secret_file, value, err);
}

/* A secret that was given where its variable's name belongs must not be repeated. */
int http_options_secret_env(struct http_options *o, const char *value, struct error *err)
{
    size_t n = 0;
    while (isalnum((unsigned char)value[n]) || value[n] == '_') n++;
    bool key = strncmp(value, "whsec_", 6) == 0 || strncmp(value, "whsk_", 5) == 0 || strncmp(value, "whpk_", 5) == 0;
    if (n == 0 || value[n] || key)
        return err_set(err, ERR_CONFIG, "this wants the name of an environment variable, not a secret");
    return set_string(&o->secret_env, value, err);
}

int http_options_header_file(struct http_options *o, const char *value, struct error *err)
{
    return set_file(&o->header_file, value, err);
}

int http_options_ca_file(struct http_options *o, const char *value, struct error *err)
{
    return set_file(&o->ca_file, value, err);
}

int http_options_proxy(struct http_options *o, const char *value, struct error *err)
{
    static const char *const schemes[] = {"http://", "https://", "socks5://", "socks5h://"};
    bool known = strcmp(value, "env") == 0;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        if (strncmp(value, schemes[i], strlen(schemes[i])) == 0) known = true;
    if (!known) return err_set(err, ERR_CONFIG, "write http://HOST:PORT, https://, socks5:// or socks5h://, or env");
    return set_string(&o->proxy, value, err);
}

int http_options_source(struct http_options *o, const char *value, struct error *err)
{
    size_t n = strlen(value);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)value[i] <= ' ' || (unsigned char)value[i] >= 0x7f || strchr("\"<>\\^`{|}", value[i]))
            return err_set(err, ERR_CONFIG, "character %zu may not stand in a URI; percent-encode it", i + 1);
    if (n == 0 || n > SOURCE_MAX) return err_set(err, ERR_CONFIG, "a source is a URI of 1 to %d bytes", SOURCE_MAX);
    return set_string(&o->source, value, err);
}

static int set_choice(int *field, const char *value, const char *const *names, struct error *err)
{
    char list[64] = "";
    for (int i = 0; names[i]; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", i ? (names[i + 1] ? ", " : " or ") : "", names[i]);
        if (strcmp(names[i], value) != 0) continue;
        *field = i;
        return 0;
    }
    return err_set(err, ERR_CONFIG, "\"%s\" is not %s", value, list);
}

int http_options_mode(struct http_options *o, const char *value, struct error *err)
{
    static const char *const names[] = {[HTTP_BINARY] = "binary", [HTTP_STRUCTURED] = "structured", NULL};
    int mode;
    if (set_choice(&mode, value, names, err) != 0) return -1;
    o->mode = (enum http_mode)mode;
    return 0;
}

int http_options_version(struct http_options *o, const char *value, struct error *err)
{
    static const char *const names[] = {[HTTP_AUTO] = "auto", [HTTP_1_1] = "1.1", [HTTP_2] = "2", NULL};
    int version;
    if (set_choice(&version, value, names, err) != 0) return -1;
    o->version = (enum http_version)version;
    return 0;
}

int http_options_client_errors(struct http_options *o, const char *value, struct error *err)
{
    static const char *const names[] = {"retry", "reject", NULL};
    int reject;
    if (set_choice(&reject, value, names, err) != 0) return -1;
    o->reject_4xx = reject;
    return 0;
}

int http_options_rate(struct http_options *o, const char *value, struct error *err)
{
    int64_t n;
    if (text_int(value, 0, RATE_MAX, &n, err) != 0) return -1;
    o->rate = (int)n;
    return 0;
}

static int set_time(int64_t *field, const char *value, struct error *err)
{
    int64_t ms;
    if (text_duration(value, &ms, err) != 0) return -1;
    if (ms > TIME_MAX_MS) return err_set(err, ERR_CONFIG, "\"%s\" is more than 24h", value);
    *field = ms;
    return 0;
}

int http_options_connect(struct http_options *o, const char *value, struct error *err)
{
    return set_time(&o->connect_ms, value, err);
}

int http_options_idle(struct http_options *o, const char *value, struct error *err)
{
    return set_time(&o->idle_ms, value, err);
}

int http_options_allow(struct http_options *o, const char *value, struct error *err)
{
    struct ipnet nets[HTTP_ALLOW_MAX] = {0};
    size_t n = 0;
    while (*value) {
        char one[64];
        size_t len = strcspn(value, ", \t");
        snprintf(one, sizeof one, "%.*s", (int)(len < sizeof one ? len : sizeof one - 1), value);
        if (len && n == HTTP_ALLOW_MAX) return err_set(err, ERR_CONFIG, "more than %d networks", HTTP_ALLOW_MAX);
        if (len && ipnet_parse(one, &nets[n++], err) != 0) return -1;
        value += len;
        value += strspn(value, ", \t");
    }
    memcpy(o->allow, nets, n * sizeof nets[0]);
    o->n_allow = n;
    return 0;
}
