/* ok.h: a call that must succeed, in a test that has an outbox_error err. */
#ifndef TESTS_API_OK_H
#define TESTS_API_OK_H

#define OK(call) \
    do { \
        if ((call) != 0) \
            fail_msg("%s: %s", #call, err.text); \
    } while (0)

#endif
