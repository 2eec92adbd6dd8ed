// One function per kind of step. It returns false, without writing, if the data are not supported.
#pragma once
#include "rows.h"

void run_conv(const Run &run, const Conv &step);
void run_depthwise(const Run &run, const Depthwise &step);
void run_product(const Run &run, const Product &step);
void run_pool(const Run &run, const Pool &step);
bool run_elementwise(const Run &run, const Elementwise &step);
void run_dot(const Run &run, const Dot &step);
void run_resize(const Run &run, const Resize &step);
void run_move(const Run &run, const Move &step);
void run_copy(const Run &run, const Copy &step);
bool run_transfer(const Run &run, const Transfer &step);
