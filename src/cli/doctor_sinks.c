/* doctor_sinks.c: outbox doctor --connect: whether the sinks of the settings answer, and who does.
 *
 * What is in flight is known to the relay alone: see outbox_sink_confirm_lag_seconds. */
#include <stdio.h>

#include "base/clock.h"
#include "cli/config.h"

/* say_answered names the broker that answered, and who leads there, if there is a broker. */
static void say_answered(struct report *r, const char *consumer, const struct sink_broker *b,
                         int64_t ms)
{
    char age[OUTPUT_AGE];
    output_age(ms, age);
    if (!b->kind)
        report_say(r, FINDING_OK, "sink", NULL, "consumer \"%s\": its sink can be used", consumer);
    else if (!b->leader[0])
        report_say(r, FINDING_OK, "sink", NULL, "consumer \"%s\": %s at %s answered within %s",
                   consumer, b->kind, b->broker, age);
    else
        report_say(r, FINDING_OK, "sink", NULL,
                   "consumer \"%s\": %s at %s answered within %s; leader: %s", consumer, b->kind,
                   b->broker, age, b->leader);
}

static void try_consumer(struct cli *cli, struct report *r, const char *name)
{
    struct error err = {0};
    struct consumer c;
    struct sink_broker b = {0};
    if (config_consumer(&cli->config, name, &c, &err) != 0) {
        report_say(r, FINDING_PROBLEM, "sink", "`outbox config check` lists what is wrong",
                   "consumer \"%s\": %s", name, err.text);
        return;
    }

    int64_t began = clock_mono(&clock_system);
    int rc = -1;
    if (c.sink)
        rc = config_try_sink(&c, true, &b, &err);
    else
        err_set(&err, ERR_CONFIG, "it has no sink");
    int64_t ms = (clock_mono(&clock_system) - began) / MS_NS;
    consumer_release(&c);

    if (rc == 0)
        say_answered(r, name, &b, ms);
    else
        report_say(r, FINDING_PROBLEM, "sink", "fix the sink, or its settings",
                   "consumer \"%s\": %s", name, err.text);
}

void doctor_sinks(struct cli *cli, struct report *r)
{
    size_t n;
    char *const *names = config_consumers(&cli->config, &n);
    if (n == 0)
        report_say(r, FINDING_NOTE, "sink", "use -c with the config file of the relay",
                   "the settings name no consumers to connect for");
    for (size_t i = 0; i < n; i++)
        try_consumer(cli, r, names[i]);
}
