/* Filters: patterns, then a line feed, then a predicate, then a line feed, then a payload to look
 * at. */
#include "event/filter.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *events = fuzz_text(data, n), *where = strchr(events, '\n'), *payload = NULL;
    struct filter *f;
    struct error err = {0};
    if (where)
        *where++ = '\0', payload = strchr(where, '\n');
    if (payload)
        *payload++ = '\0';
    struct str looked_at = payload ? str_of(payload) : STR("{\"a\":{\"b\":[1,\"x\"]},\"c\":null}");
    if (filter_new(events, where, &f, &err) != 0) {
        MUST(err.code == ERR_CONFIG && err.text[0] && !strchr(err.text, '\n'));
    } else {
        filter_type(f, STR("order.paid"));
        filter_type(f, looked_at);
        filter_payload(f, looked_at);
        filter_payload(f, STR("{\"a\":{\"b\":[1,\"x\"]}}"));
        filter_free(f);
    }
    if (payload) {
        MUST(filter_matches(STR("*"), looked_at));
        filter_matches(str_of(events), looked_at);
    }
    free(events);
    return 0;
}
