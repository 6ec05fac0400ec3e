/* predicates.c: random predicates and payloads. Both use few names and values in many spellings, so
 * that they often match. */
#include "predicates.h"

#include "base/buf.h"
#include "base/rng.h"
#include "event/filter.h"
#include "store_impl.h"

#define TEXT_MAX 65536
#define ROUNDS 400
#define PAYLOADS 6 /* for each predicate */

#define PICK(r, list) (list)[rng_below(r, sizeof(list) / sizeof *(list))]

/* Spellings of strings, most of them of the same few; SQL cannot evaluate those in the last
 * line. */
static const char *const strings[] = {
    "\"a\"",
    "\"\\u0061\"",
    "\"A\"",
    "\"\"",
    "\"0\"",
    "\"1\"",
    "\"and\"",
    "\"a.b\"",
    "\"a b\"",
    "\"\\\\u0061\"",
    "\"\\\\\\\\\"",
    "\"\\/\"",
    "\"/\"",
    "\"\\n\"",
    "\"\\u000a\"",
    "\"\\\"\"",
    "\"\\u0022\"",
    "\"\303\251\"",
    "\"\\u00e9\"",
    "\"e\\u0301\"",
    "\"\360\237\230\200\"",
    "\"\\ud83d\\ude00\"",
    "\"\\uD83D\\uDE00\"",
    "\"\\ud83d\"",
    "\"\\ude00\"",
    "\"\\ude00\\ud83d\"",
    "\"\\ud83d\\ud83d\\ude00\"",
    "\"\357\277\275\"",
    "\"\\ufffd\"",
    "\"\\ufffd\\ufffd\"",
    "\"\\\\ud83d\"",
    "\"\\u0000\"",
    "\"\\\\u0000\"",
    "\"a\\u0000\"",
    "\"\\ufdd0\"",
    "\"\357\267\220\"",
    "\"\\uFDD0\"",
};
static const char *const numbers[] = {
    "0",
    "-0",
    "0.0",
    "0e99999999999999999999",
    "1",
    "1.0",
    "1e0",
    "10e-1",
    "0.1e1",
    "0.01E+2",
    "-1",
    "-1.0",
    "100",
    "1e2",
    "1E+2",
    "1.00e2",
    "12",
    "1.2e1",
    "0.12",
    "12e-2",
    "9007199254740993",
    "9007199254740992",
    "9007199254740993.0",
    "1e400",
    "10e399",
    "1e-400",
    "0.1e-399",
    "1e200000",
    "10e199999",
    "123456789012345678901234567890.5",
    "1234567890123456789012345678905e-1",
    "1e1000000000000000",
    "1e10000000000000000",
    "1e10000000000000001",
    "1e-1000000000000000",
    "1e0000000000000000001",
    "1e+1",
    "10",
};
static const char *const words[] = {"true", "false", "null"};
static const char *const bare[] = {"a",   "b", "A",      "0",   "1",          "00",       "01",
                                   "a-b", "_", "exists", "and", "0000000001", "000000000"};
static const char *const spaces[] = {"", "", "", " ", "\n", " \t ", "\r"};

static void add_space(struct buf *b, struct rng *r)
{
    buf_adds(b, PICK(r, spaces));
}

static void add_value(struct buf *b, struct rng *r, int depth);

static void add_members(struct buf *b, struct rng *r, int depth, bool object)
{
    uint64_t n = rng_below(r, 5);
    for (uint64_t i = 0; i < n; i++) {
        if (i > 0)
            buf_addc(b, ',');
        add_space(b, r);
        if (object && rng_below(r, 2))
            buf_addf(b, "\"%s\"", PICK(r, bare));
        else if (object)
            buf_adds(b, PICK(r, strings));
        if (object) {
            add_space(b, r);
            buf_addc(b, ':');
        }
        add_value(b, r, depth - 1);
    }
}

/* add_value adds a JSON value; where depth is left it is often an object or an array. */
static void add_value(struct buf *b, struct rng *r, int depth)
{
    add_space(b, r);
    uint64_t kind = rng_below(r, depth > 0 ? 8 : 3);
    if (kind == 0)
        buf_adds(b, PICK(r, words));
    else if (kind == 1)
        buf_adds(b, PICK(r, strings));
    else if (kind == 2)
        buf_adds(b, PICK(r, numbers));
    else {
        bool object = kind > 4;
        buf_addc(b, object ? '{' : '[');
        add_members(b, r, depth, object);
        buf_addc(b, object ? '}' : ']');
    }
    add_space(b, r);
}

/* add_payload adds a payload; if they may be deep, one in sixteen is around the depth that a relay
 * reads. */
static void add_payload(struct buf *b, struct rng *r, bool deep)
{
    if (!deep || rng_below(r, 16)) {
        add_value(b, r, 3);
        return;
    }
    uint64_t depth = 253 + rng_below(r, 5);
    buf_adds(b, "{\"a\":1,\"b\":[\"]\\\"[\",");
    for (uint64_t i = 0; i < depth; i++)
        buf_adds(b, i % 2 ? "{\"a\":" : "[");
    buf_adds(b, depth % 2 ? "[]" : "{}");
    for (uint64_t i = depth; i-- > 0;)
        buf_adds(b, i % 2 ? "}" : "]");
    buf_adds(b, "]}");
}

static void add_path(struct buf *b, struct rng *r)
{
    for (uint64_t n = 1 + rng_below(r, 3); n > 0; n--) {
        if (rng_below(r, 4))
            buf_adds(b, PICK(r, bare));
        else
            buf_adds(b, PICK(r, strings));
        if (n > 1)
            buf_addc(b, '.');
    }
}

static void add_literal(struct buf *b, struct rng *r)
{
    switch (rng_below(r, 4)) {
    case 0: buf_adds(b, PICK(r, strings)); break;
    case 1: buf_adds(b, PICK(r, words)); break;
    case 2: buf_adds(b, rng_below(r, 2) ? "'a'" : "'\\u0061'"); break;
    default: buf_adds(b, PICK(r, numbers));
    }
}

/* add_predicate adds a predicate. One in four of its names is a keyword or similar, so that some
 * are invalid. */
static void add_predicate(struct buf *b, struct rng *r, int depth)
{
    uint64_t kind = rng_below(r, depth > 0 ? 8 : 4);
    add_space(b, r);
    if (kind >= 6) {
        buf_addc(b, '(');
        add_predicate(b, r, depth - 1);
        buf_addc(b, ')');
    } else if (kind >= 4) {
        add_predicate(b, r, depth - 1);
        buf_adds(b, rng_below(r, 2) ? " and " : " or ");
        add_predicate(b, r, depth - 1);
    } else if (kind == 3) {
        buf_adds(b, "not ");
        add_predicate(b, r, depth - 1);
    } else if (kind == 2) {
        bool first = rng_below(r, 2);
        if (first)
            buf_adds(b, "exists ");
        add_path(b, r);
        if (!first)
            buf_adds(b, " exists");
    } else {
        add_path(b, r);
        add_space(b, r);
        buf_adds(b, rng_below(r, 4) ? "=" : "!=");
        add_space(b, r);
        add_literal(b, r);
    }
    add_space(b, r);
}

static void compare(const struct predicates_sql *sql, const struct filter *f, const char *predicate,
                    const char *payload, int *seen)
{
    int in_c = filter_payload(f, (struct str){payload, strlen(payload)});
    int said = sql->ask(sql->db, predicate, payload);
    bool unable = said == 2 && sql->cannot && sql->cannot(predicate);
    if (said != in_c && !unable)
        fail_msg("%s\n%s\nC: %d, SQL: %d", predicate, payload, in_c, said);
    seen[said]++;
}

void predicates_compare(const struct predicates_sql *sql)
{
    struct rng r;
    struct buf predicate, payload;
    int seen[3] = {0};
    rng_seed_os(&r);
    uint64_t seed = rng_next(&r);
    print_message("seed %llu\n", (unsigned long long)seed);
    rng_seed(&r, seed);
    buf_init(&predicate, TEXT_MAX);
    buf_init(&payload, TEXT_MAX);
    for (int i = 0; i < ROUNDS; i++) {
        struct filter *f;
        buf_clear(&predicate);
        add_predicate(&predicate, &r, 3);
        const char *text = buf_cstr(&predicate);
        bool is_one = filter_new(NULL, text, &f, NULL) == 0;
        for (int k = 0; k < PAYLOADS; k++) {
            buf_clear(&payload);
            add_payload(&payload, &r, sql->deep);
            if (is_one)
                compare(sql, f, text, buf_cstr(&payload), seen);
            else if (sql->parses && sql->ask(sql->db, text, buf_cstr(&payload)) != 2)
                fail_msg("C rejects this predicate: %s", text);
        }
        if (is_one)
            filter_free(f);
    }
    assert_true(seen[0] > ROUNDS / 4);
    assert_true(seen[1] > ROUNDS / 4);
    buf_release(&predicate);
    buf_release(&payload);
}
