#pragma once

#include <QWidget>

namespace ui {

class UI_EXPORT Panel : public QWidget
{
    Q_OBJECT

public:
    explicit Panel(QWidget *parent = nullptr);
    ~Panel() override;

    UI_EXPORT int count() const { return m_count; }

public slots:
    void refresh();

signals:
    void refreshed(int count);

private:
    int m_count = 0;
};

} // namespace ui
