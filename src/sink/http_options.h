/* http_options.h: what a webhook is told beside its URL. They are options of a consumer, not parameters of the URL: the
 * query of an https URL belongs to the endpoint, every byte of it. */
#ifndef SINK_HTTP_OPTIONS_H
#define SINK_HTTP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ipnet.h"

enum http_mode { HTTP_BINARY, HTTP_STRUCTURED };
enum http_version { HTTP_AUTO, HTTP_1_1, HTTP_2 };

#define HTTP_ALLOW_MAX 64

/* (1) Strings are owned; NULL: not given. (2) All zero is a good default, but for connect_ms. */
struct http_options {
    char *secret_file, *secret_env; /* of signatures */
    char *header_file;              /* "Name: value" lines to send along */
    char *ca_file;
    char *proxy;  /* a URL, or "env" */
    char *source; /* of CloudEvents */
    enum http_mode mode;
    enum http_version version;
    bool reject_4xx;
    int rate;                    /* requests a second; 0: as they come */
    int64_t connect_ms, idle_ms; /* 0: no limit but that of the whole delivery */
    struct ipnet allow[HTTP_ALLOW_MAX];
    size_t n_allow;
};

void http_options_release(struct http_options *o);
/* http_options_copy makes another like it; on failure *ret is to be released, too. */
int http_options_copy(const struct http_options *from, struct http_options *ret, struct error *err);

/* Setters, one an option. ERR_CONFIG speaks of the value only. */
int http_options_secret_file(struct http_options *o, const char *value, struct error *err);
int http_options_secret_env(struct http_options *o, const char *value, struct error *err);
int http_options_header_file(struct http_options *o, const char *value, struct error *err);
int http_options_ca_file(struct http_options *o, const char *value, struct error *err);
int http_options_proxy(struct http_options *o, const char *value, struct error *err);
int http_options_source(struct http_options *o, const char *value, struct error *err);
int http_options_mode(struct http_options *o, const char *value, struct error *err);
int http_options_version(struct http_options *o, const char *value, struct error *err);
int http_options_client_errors(struct http_options *o, const char *value, struct error *err);
int http_options_rate(struct http_options *o, const char *value, struct error *err);
int http_options_connect(struct http_options *o, const char *value, struct error *err);
int http_options_idle(struct http_options *o, const char *value, struct error *err);
int http_options_allow(struct http_options *o, const char *value, struct error *err);

#endif
