/* ripple from C++. */
#include "ripple/ripple.hpp"

#include <iostream>
#include <string>

int main()
{
    const float x[6] = {1, 2, 3, 4, 5, 6};
    float y[6] = {};
    const ripple::Tensor sums = ripple::row_sums({x, {2, 3}});
    ripple::added_options options;
    options.offset = 0.5;
    ripple::added({x, {6}}, {x, {6}}, {y, {6}}, options);
    if (sums.data<float>()[0] != 6.0F || sums.data<float>()[1] != 15.0F || y[5] != 12.5F) {
        std::cerr << "wrong result\n";
        return 1;
    }
    try {
        (void)ripple::largest({x, {0}});
    } catch (const ripple::Error &error) {
        return std::string(error.what()).find("largest: the largest of no element is not defined") == 0 ? 0 : 1;
    }
    return 1;
}
