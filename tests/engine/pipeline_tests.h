/* pipeline_tests.h: the parts of the pipeline's tests; test_pipeline.c runs them all. */
#ifndef TESTS_ENGINE_PIPELINE_TESTS_H
#define TESTS_ENGINE_PIPELINE_TESTS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../suite.h"
#include "rig.h"

extern const struct suite_part pipeline_suspects_tests, pipeline_settings_tests,
    pipeline_store_tests, pipeline_time_tests;

#endif
