/* skeleton.c: `migrate gen --out-dir`: a starter program for a service, and writing its files. */
#include "extra/gen/skeleton.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MODE 0644
#define DIR_MODE 0755

/* ---- the program ---- */

/* The argument is the name of the service. */
static const char program_head[] =
    "/* boot.c: the outbox of the service %s. It creates the tables if they do not exist, and\n"
    " * delivers until SIGTERM or SIGINT. Change it as you like.\n"
    " *\n"
    " *     make\n"
    " *     ./boot              # delivers\n"
    " *     ./boot emit TYPE    # emits an event, as your own transactions will\n"
    " *\n"
    " * OUTBOX_STORE and OUTBOX_SINK override STORE and SINK. */\n"
    "#include <signal.h>\n"
    "#include <stdio.h>\n"
    "#include <stdlib.h>\n"
    "#include <string.h>\n"
    "\n"
    "#include <outbox.h>\n"
    "\n";

static const char program_body[] =
    "static outbox *ob; /* for the signal handler */\n"
    "\n"
    "static void on_stop(int number)\n"
    "{\n"
    "    (void)number;\n"
    "    outbox_stop(ob);\n"
    "}\n"
    "\n"
    "static int failed(const char *what, const outbox_error *err)\n"
    "{\n"
    "    fprintf(stderr, \"boot: %s: %s\\n\", what, err->text);\n"
    "    return EXIT_FAILURE;\n"
    "}\n"
    "\n"
    "static void on_log(void *ctx, int level, const char *consumer, const char *text)\n"
    "{\n"
    "    (void)ctx;\n"
    "    (void)level;\n"
    "    if (consumer)\n"
    "        fprintf(stderr, \"boot: %s: %s\\n\", consumer, text);\n"
    "    else\n"
    "        fprintf(stderr, \"boot: %s\\n\", text);\n"
    "}\n"
    "\n"
    "/* emit uses a separate transaction. In yours, call outbox_emit_pg or outbox_emit_sqlite\n"
    " * with your connection. */\n"
    "static int emit(const char *type)\n"
    "{\n"
    "    outbox_message m = OUTBOX_MESSAGE_INIT;\n"
    "    outbox_error err;\n"
    "    m.type = type;\n"
    "    m.payload = \"{}\";\n"
    "    if (outbox_emit(ob, &m, NULL, &err) != 0)\n"
    "        return failed(\"emit\", &err);\n"
    "    return EXIT_SUCCESS;\n"
    "}\n"
    "\n"
    "static int deliver(void)\n"
    "{\n"
    "    const char *sink = getenv(\"OUTBOX_SINK\");\n"
    "    outbox_consumer *c;\n"
    "    outbox_error err;\n"
    "    if (outbox_consumer_new(ob, SERVICE, &c, &err) != 0)\n"
    "        return failed(SERVICE, &err);\n"
    "    if (outbox_consumer_set(c, \"preset\", \"dispatcher\", &err) != 0)\n"
    "        return failed(SERVICE, &err);\n"
    "    if (outbox_consumer_set(c, \"sink\", sink ? sink : SINK, &err) != 0)\n"
    "        return failed(SERVICE, &err);\n"
    "    signal(SIGTERM, on_stop);\n"
    "    signal(SIGINT, on_stop);\n"
    "    signal(SIGPIPE, SIG_IGN);\n"
    "    if (outbox_run(ob, 0, &err) != 0)\n"
    "        return failed(\"deliver\", &err);\n"
    "    return EXIT_SUCCESS;\n"
    "}\n"
    "\n"
    "int main(int argc, char **argv)\n"
    "{\n"
    "    const char *store = getenv(\"OUTBOX_STORE\");\n"
    "    outbox_options options = OUTBOX_OPTIONS_INIT;\n"
    "    outbox_error err;\n"
    "    int status;\n"
    "    options.create = 1;\n"
    "    options.log = on_log;\n"
    "    if (outbox_open(store ? store : STORE, &options, &ob, &err) != 0)\n"
    "        return failed(\"open\", &err);\n"
    "    if (argc == 3 && strcmp(argv[1], \"emit\") == 0)\n"
    "        status = emit(argv[2]);\n"
    "    else\n"
    "        status = deliver();\n"
    "    outbox_close(ob);\n"
    "    return status;\n"
    "}\n";

static const char makefile[] =
    "override CFLAGS += -std=c17 -Wall -Wextra $(shell pkg-config --cflags outbox)\n"
    "override LDLIBS += $(shell pkg-config --libs outbox)\n"
    "\n"
    "boot: boot.c\n"
    "\n"
    "clean:\n"
    "\trm -f boot\n"
    "\n"
    ".PHONY: clean\n";

/* Appends a C string literal. Every character but printable ASCII is written as three octal digits.
 * Two question marks could start a trigraph, so the first one is escaped. */
static void add_literal(struct buf *b, const char *text)
{
    buf_addc(b, '"');
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        bool trigraph = *p == '?' && p[1] == '?';
        bool special = *p == '"' || *p == '\\' || trigraph;
        if (special)
            buf_addc(b, '\\');
        if (*p < ' ' || *p > '~')
            buf_addf(b, "\\%03o", *p);
        else
            buf_addc(b, (char)*p);
    }
    buf_addc(b, '"');
}

void skeleton_program(struct buf *b, const char *service, const char *store)
{
    buf_addf(b, program_head, service);
    buf_adds(b, "#define SERVICE ");
    add_literal(b, service);
    buf_adds(b, "\n#define STORE ");
    add_literal(b, store);
    buf_addf(b,
             "\n"
             "#define SINK \"stdout:\"\n"
             "/* or \"redis://127.0.0.1:6379/0?stream={type}&lease=lock:outbox:%s\" */\n"
             "\n",
             service);
    buf_adds(b, program_body);
}

void skeleton_makefile(struct buf *b)
{
    buf_adds(b, makefile);
}

/* ---- files ---- */

static int make_one(const char *path, struct error *err)
{
    if (mkdir(path, DIR_MODE) == 0 || errno == EEXIST)
        return 0;
    return err_errno(err, ERR_CONFIG, errno, "--out-dir: could not create %s", path);
}

/* Creates a directory and its parents. */
static int make_folder(const char *dir, struct error *err)
{
    char path[SKELETON_PATH];
    size_t n = strlen(dir);
    if (n == 0)
        return err_set(err, ERR_CONFIG, "--out-dir: the name of the directory is empty");
    if (n >= sizeof(path))
        return err_set(err, ERR_CONFIG, "--out-dir: the name of the directory is too long");

    memcpy(path, dir, n + 1);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (make_one(path, err) != 0)
            return -1;
        *slash = '/';
    }
    return make_one(path, err);
}

static int path_of(const char *dir, const char *name, char out[SKELETON_PATH], struct error *err)
{
    int n = snprintf(out, SKELETON_PATH, "%s/%s", dir, name);
    if (n < SKELETON_PATH)
        return 0;
    return err_set(err, ERR_CONFIG, "--out-dir: the name of the directory is too long");
}

static bool same_text(const struct buf *a, const struct buf *b)
{
    if (a->n != b->n)
        return false;
    return a->n == 0 || memcmp(a->p, b->p, a->n) == 0;
}

/* Checks whether a file exists, and fails if its content differs. */
static int compare_file(const char *dir, struct skeleton_file *f, struct error *err)
{
    char path[SKELETON_PATH];
    struct buf there;
    if (path_of(dir, f->name, path, err) != 0)
        return -1;

    buf_init(&there, f->text.n + 1);
    int e = fd_slurp(path, f->text.n + 1, &there);
    f->is_new = e != 0 || !same_text(&there, &f->text);
    buf_release(&there);

    if (e == ENOENT || !f->is_new)
        return 0;
    return err_set(err, ERR_CONFIG,
                   "%s already exists with different content; nothing was written; move the file "
                   "away, or use another --out-dir",
                   path);
}

static int write_all(int fd, const struct buf *text)
{
    size_t at = 0;
    while (at < text->n) {
        ssize_t n = write(fd, text->p + at, text->n - at);
        if (n >= 0)
            at += (size_t)n;
        else if (errno != EINTR)
            return -1;
    }
    return 0;
}

/* Writes a new file. Neither replaces a file created in the meantime nor follows a link. */
static int write_new(const char *dir, const struct skeleton_file *f, struct error *err)
{
    char path[SKELETON_PATH];
    if (path_of(dir, f->name, path, err) != 0)
        return -1;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
    if (fd < 0)
        return err_errno(err, ERR_CONFIG, errno, "could not create %s", path);

    if (write_all(fd, &f->text) != 0) {
        int e = errno;
        close(fd);
        unlink(path);
        return err_errno(err, ERR_FULL, e, "could not write %s", path);
    }
    if (close(fd) != 0)
        return err_errno(err, ERR_FULL, errno, "could not write %s", path);
    return 0;
}

int skeleton_write(const char *dir, struct skeleton_file *files, size_t n, struct error *err)
{
    for (size_t i = 0; i < n; i++)
        if (!buf_cstr(&files[i].text))
            return err_nomem(err);
    if (make_folder(dir, err) != 0)
        return -1;

    /* Check all files before writing the first: all or nothing. */
    for (size_t i = 0; i < n; i++)
        if (compare_file(dir, &files[i], err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++)
        if (files[i].is_new && write_new(dir, &files[i], err) != 0)
            return -1;
    return 0;
}
