/* http_options.h: the settings of a webhook besides its URL. They are options of a consumer rather
 * than parameters of the URL, because the query of an https URL belongs entirely to the
 * endpoint. */
#ifndef SINK_HTTP_OPTIONS_H
#define SINK_HTTP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ipnet.h"
#include "base/option.h"

/* The form of a request: attributes in headers, or the whole event as one JSON object. */
enum http_mode { HTTP_BINARY, HTTP_STRUCTURED };
enum http_version { HTTP_AUTO, HTTP_1_1, HTTP_2 };

#define HTTP_ALLOW_MAX 64

/* (1) Strings are owned; NULL if not given. (2) All zero is a valid default, except for
 * connect_ms. */
struct http_options {
    char *secret_file, *secret_env; /* the secret for signatures */
    char *header_file;              /* extra "Name: value" lines */
    char *ca_file;
    char *proxy;  /* a URL, or "env" */
    char *source; /* of CloudEvents */
    enum http_mode mode;
    enum http_version version;
    bool reject_4xx;
    int rate;                    /* requests a second; 0: no limit */
    int64_t connect_ms, idle_ms; /* 0: only the time limit of the delivery */
    struct ipnet allow[HTTP_ALLOW_MAX];
    size_t n_allow;
};

void http_options_release(struct http_options *o);
/* http_options_copy makes a deep copy, which the caller releases even after a failure. Errors:
 * ERR_NOMEM. */
int http_options_copy(const struct http_options *from, struct http_options *ret, struct error *err);

#define HTTP_RATE_MAX 1000000
#define HTTP_TIME_MAX_MS (24 * INT64_C(3600000))
extern const char *const http_mode_names[];          /* by enum http_mode; ends with NULL */
extern const char *const http_client_errors_names[]; /* by reject_4xx; ends with NULL */
extern const char *const http_version_names[];       /* by enum http_version; ends with NULL */

/* Setters missing from base/option.h, each with the field it sets. */
option_setter http_options_secret_env; /* secret_env */
option_setter http_options_proxy;      /* proxy */
option_setter http_options_source;     /* source */
/* takes the whole struct http_options; sets allow and n_allow */
option_setter http_options_allow;

#endif
