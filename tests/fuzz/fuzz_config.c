/* A whole config file, as the CLI reads it: settings, consumers, and whether each could run. */
#include <sys/mman.h>
#include <unistd.h>

#include "cli/cli.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct config c;
    struct settings s;
    struct error err = {0};
    char path[64];
    size_t count;
    int fd = memfd_create("config", MFD_CLOEXEC);
    if (fd < 0 || (n && write(fd, data, n) != (ssize_t)n))
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    config_init(&c);
    if (config_file(&c, path, &err) == 0 && config_settings(&c, &s, &err) == 0) {
        const struct named *names = config_consumers(&c, &count);
        for (size_t i = 0; i < count; i++) {
            MUST(store_name_check(names[i].name, &err) == 0);
            for (const struct option_def *o = consumer_options; o->name; o++)
                config_get(&c, names[i].name, o);
        }
    } else
        MUST(err.code != ERR_NONE && err.code != ERR_INTERNAL && err.text[0]);
    bool bad = err.code != ERR_NONE;
    config_release(&c);
    c.gather = true; /* the file is read to its end despite errors */
    if (config_file(&c, path, &err) == 0)
        MUST(config_settings(&c, &s, &err) == 0 && (!bad || c.n_problems > 0));
    config_release(&c);
    close(fd);
    return 0;
}
