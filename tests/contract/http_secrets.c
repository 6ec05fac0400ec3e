/* http_secrets.c: signatures, headers from files, and secrets that no message repeats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "http_rig.h"
#include "sink/signature.h"

static char *value_of(struct fixture *f, size_t i, const char *name)
{
    char *head = http_peer_head(f->peer, i), *at = strstr(head, name);
    assert_non_null(at);
    at += strlen(name);
    char *value = strndup(at, strcspn(at, "\n"));
    free(head);
    return value;
}

#define OLD "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#define NEW "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

#define PRIVATE \
    "whsk_6Xb/dCcHpPea21PS1N9VY/" \
    "NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
#define PUBLIC "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="

static void every_secret_signs_and_each_verifies(void **state)
{
    struct fixture *f = *state;
    char one[SINK_PATH_SIZE + 16];
    sink_tmp_write(f->secrets, "# being rotated\n" NEW "\n\n" OLD "\n" PRIVATE "\n");
    assert_int_equal(option_copy(&f->o.secret_file, f->secrets, NULL, NULL), 0);
    open_here(f);
    assert_int_equal(deliver(f, "{\"a\": 1}")->status, SINK_DELIVERED);
    char *id = value_of(f, 0, "\nwebhook-id: "), *stamp = value_of(f, 0, "\nwebhook-timestamp: ");
    char *signature = value_of(f, 0, "\nwebhook-signature: ");
    assert_string_equal(id, f->rig.items[0]->id);
    struct signature_message m = {str_of(id), strtoll(stamp, NULL, 10), STR("{\"a\": 1}")};
    assert_in_range(m.timestamp, time(NULL) - 100, time(NULL) + 1);
    snprintf(one, sizeof one, "%s/one", f->dir);
    const char *each[] = {NEW, OLD, PUBLIC};
    for (size_t i = 0; i < 3; i++) {
        struct signature_keys *keys;
        struct signature_source from = {one, NULL, SIGNATURE_VERIFY};
        sink_tmp_write(one, each[i]);
        assert_int_equal(signature_keys_load(&from, &keys, NULL), 0);
        assert_null(signature_check(keys, &m, str_of(signature), time(NULL)));
        m.body = STR("{\"a\": 2}");
        assert_non_null(signature_check(keys, &m, str_of(signature), time(NULL)));
        m.body = STR("{\"a\": 1}");
        signature_keys_free(keys);
    }
    free(id);
    free(stamp);
    free(signature);
}

static void secret_headers_are_sent_and_never_echoed(void **state)
{
    struct fixture *f = *state;
    sink_tmp_write(f->secrets, "Authorization: Bearer s3cr3t-t0k3n\nX-Tenant:  blue \n");
    assert_int_equal(option_copy(&f->o.header_file, f->secrets, NULL, NULL), 0);
    open_here(f);
    http_peer_reply(f->peer, (struct http_reply){.status = 500, .body = "you said s3cr3t-t0k3n"});
    struct sink_item *it = deliver(f, "{}");
    assert_head_has(f, 0, "\nauthorization: Bearer s3cr3t-t0k3n\n");
    assert_head_has(f, 0, "\nx-tenant: blue\n");
    assert_null(strstr(it->text, "s3cr3t"));
    assert_null(strstr(it->text, "t0ken")); /* of the URL */
}

/* The answer repeats path and query of the URL, where endpoints have their tokens. */
static void url_path_and_query_are_never_echoed(void **state)
{
    static const char *const bodies[] = {"no such token: t0ken", "Cannot POST /hook",
                                         "/hook?token=t0ken is not ours"};
    struct fixture *f = *state;
    open_here(f);
    for (size_t i = 0; i < COUNT(bodies); i++) {
        http_peer_reply(f->peer, (struct http_reply){.status = 404, .body = bodies[i]});
        struct sink_item *it = deliver(f, "{}");
        assert_int_equal(it->status, SINK_RETRY);
        if (strstr(it->text, "t0ken") || strstr(it->text, "hook"))
            fail_msg("%s", it->text);
        sink_assert_says(it, "HTTP 404");
    }
    http_peer_reply(f->peer, (struct http_reply){.status = 404, .body = "gone fishing"});
    assert_non_null(strstr(deliver(f, "{}")->text, "HTTP 404: gone fishing"));
}

/* A token in the path may be short. Ordinary words and tiny values hide nothing by chance. */
static void short_tokens_are_not_echoed_but_words_are(void **state)
{
    struct fixture *f = *state;
    char url[512];
    sink_tmp_write(f->secrets, "X-Version: 2\n");
    assert_int_equal(option_copy(&f->o.header_file, f->secrets, NULL, NULL), 0);
    const char *peer = http_peer_url(f->peer, "127.0.0.1"), *host = strstr(peer, "://") + 3;
    snprintf(url, sizeof url, "%.*s/orders/abc12345", (int)(host + strcspn(host, "/") - peer),
             peer);
    sink_rig_open(&f->rig, (struct sink_config){
                               .url = url, .timeout_ms = 30000, .concurrency = 8, .http = &f->o});
    http_peer_reply(f->peer, (struct http_reply){.status = 404, .body = "unknown: abc12345"});
    struct sink_item *it = deliver(f, "{}");
    assert_null(strstr(it->text, "abc12345"));
    sink_assert_says(it, "the response repeats a secret");
    http_peer_reply(f->peer, (struct http_reply){.status = 404, .body = "2 orders are missing"});
    sink_assert_says(deliver(f, "{}"), "HTTP 404: 2 orders are missing");
}

/* An excerpt may end in the middle of a secret. */
static void part_of_a_secret_is_not_echoed(void **state)
{
    struct fixture *f = *state;
    char body[400];
    sink_tmp_write(f->secrets,
                   "Authorization: Bearer s3cr3t-t0k3n-that-is-long-enough-to-be-cut\n");
    assert_int_equal(option_copy(&f->o.header_file, f->secrets, NULL, NULL), 0);
    open_here(f);
    memset(body, '.', sizeof body);
    strcpy(body + 140, "s3cr3t-t0k3n-that-is-long-enough-to-be-cut");
    http_peer_reply(f->peer, (struct http_reply){.status = 500, .body = body});
    struct sink_item *it = deliver(f, "{}");
    assert_int_equal(it->status, SINK_RETRY);
    assert_null(strstr(it->text, "s3cr3t"));
}

static void changed_secrets_and_headers_apply_without_a_restart(void **state)
{
    struct fixture *f = *state;
    char headers[SINK_PATH_SIZE + 16];
    snprintf(headers, sizeof headers, "%s/headers", f->dir);
    sink_tmp_write(f->secrets, OLD "\n");
    sink_tmp_write(headers, "Authorization: Bearer first\n");
    assert_int_equal(option_copy(&f->o.secret_file, f->secrets, NULL, NULL), 0);
    assert_int_equal(option_copy(&f->o.header_file, headers, NULL, NULL), 0);
    open_here(f);
    assert_int_equal(deliver(f, "1")->status, SINK_DELIVERED);
    sink_tmp_write(f->secrets, NEW "\n" OLD "\n");
    sink_tmp_write(headers, "Authorization: Bearer another\n");
    f->rig.ahead_ns += 2 * SECOND;
    assert_int_equal(deliver(f, "2")->status, SINK_DELIVERED);
    assert_head_has(f, 0, "Bearer first\n");
    assert_head_has(f, 1, "Bearer another\n");
    char *before = value_of(f, 0, "\nwebhook-signature: "),
         *after = value_of(f, 1, "\nwebhook-signature: ");
    assert_null(strchr(before, ' '));
    assert_non_null(strchr(after, ' '));
    free(before);
    free(after);
    sink_tmp_write(f->secrets, "s3cr3t");
    f->rig.ahead_ns += 2 * SECOND;
    for (int i = 0; i < 2; i++) { /* also when reread unchanged */
        struct sink_item *it = deliver(f, "3");
        assert_int_equal(it->status, SINK_DOWN);
        sink_assert_says(it, "secret 1 does not start with whsec_");
        assert_null(strstr(it->text, "s3cr3t"));
    }
    sink_tmp_write(f->secrets, NEW);
    assert_int_equal(deliver(f, "4")->status, SINK_DELIVERED);
    assert_int_equal(http_peer_requests(f->peer), 3);
}

static void invalid_header_files_are_refused_without_showing_values(void **state)
{
    static const char *const bad[] = {
        "s3cr3t\n",      "a b: s3cr3t\n",        "Host: s3cr3t\n", "ce-id: s3cr3t\n",
        "x: s3c\rr3t\n", "Webhook-Id: s3cr3t\n", "x:\n",           ": s3cr3t\n"};
    struct fixture *f = *state;
    assert_int_equal(option_copy(&f->o.header_file, f->secrets, NULL, NULL), 0);
    for (size_t i = 0; i < COUNT(bad); i++) {
        sink_tmp_write(f->secrets, bad[i]);
        refuses(&f->o, http_peer_url(f->peer, "127.0.0.1"), "line 1", "s3c");
    }
    sink_tmp_remove(f->dir);
    refuses(&f->o, http_peer_url(f->peer, "127.0.0.1"), "could not read the headers", NULL);
}

static const struct CMUnitTest tests[] = {
    ON_A_PEER(every_secret_signs_and_each_verifies),
    ON_A_PEER(secret_headers_are_sent_and_never_echoed),
    ON_A_PEER(url_path_and_query_are_never_echoed),
    ON_A_PEER(short_tokens_are_not_echoed_but_words_are),
    ON_A_PEER(part_of_a_secret_is_not_echoed),
    ON_A_PEER(changed_secrets_and_headers_apply_without_a_restart),
    ON_A_PEER(invalid_header_files_are_refused_without_showing_values),
};

const struct suite_part http_secrets_tests = SUITE_PART(tests);
