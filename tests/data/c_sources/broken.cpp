class Whole {
public:
    int one() { return 1; }
};

int half( {

int last() { return 2; }

namespace open {
void inside() {}
