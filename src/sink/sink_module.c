/* sink_module.c: loads liboutbox-sinks from the folder of liboutbox, regardless of the
 * environment. */
#include "sink/sink_module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MODULE_FILE "liboutbox-sinks.so.0"
#define INSTALL_IT "install it beside liboutbox, from the same package"

static struct {
    pthread_once_t once;
    const struct sink_module *module;
    struct error why; /* why it is missing */
} loaded = {.once = PTHREAD_ONCE_INIT};

/* Writes the path of the module in the folder of the library that contains this code. */
static bool module_path(char *path, size_t size)
{
    static const char here; /* an address in the library */
    Dl_info of;
    if (dladdr(&here, &of) == 0)
        return false;
    const char *slash = strrchr(of.dli_fname, '/');
    int folder = slash ? (int)(slash + 1 - of.dli_fname) : 0;
    int n = snprintf(path, size, "%.*s%s", folder, of.dli_fname, MODULE_FILE);
    return n > 0 && (size_t)n < size;
}

static void load(void)
{
    char path[PATH_MAX];
    if (!module_path(path, sizeof path)) {
        err_set(&loaded.why, ERR_CONFIG, "the folder of liboutbox cannot be found");
        return;
    }

    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        err_set(&loaded.why, ERR_CONFIG, "broker sinks are in %s, which cannot be loaded: %s; %s",
                MODULE_FILE, dlerror(), INSTALL_IT);
        return;
    }
    const struct sink_module *m = dlsym(library, SINK_MODULE_SYMBOL);
    if (!m || strcmp(m->version, OUTBOX_VERSION) != 0) {
        err_set(&loaded.why, ERR_CONFIG, "%s is of version %s, liboutbox of %s; %s", path,
                m ? m->version : "unknown", OUTBOX_VERSION, INSTALL_IT);
        dlclose(library);
        return;
    }
    loaded.module = m;
}

const struct sink_module *sink_module_load(struct error *err)
{
    pthread_once(&loaded.once, load);
    if (!loaded.module)
        *err = loaded.why;
    return loaded.module;
}
